//go:build !unit

package shim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// launcher is a shim with a real QEMU, emulated. The test is its agent.
type launcher struct {
	*shimProcess
	monitor string
	n       uint64
}

// boot starts a launcher and waits until its guest is up or, with env, waited for.
func boot(t *testing.T, behaviour string, env ...string) *launcher {
	t.Helper()
	return bootCPU(t, "qemu64", behaviour, env...)
}

// bootCPU is boot with a CPU.
func bootCPU(t *testing.T, cpu, behaviour string, env ...string) *launcher {
	t.Helper()
	dir := t.TempDir()
	kernel, initrd := node.GuestImage(t)
	monitor := filepath.Join(t.TempDir(), "qmp")
	serial := filepath.Join(t.TempDir(), "serial")
	s := prepare(t, dir, "--ask-with=qmp:"+monitor, "--", "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", cpu, "-m", "128",
		"-display", "none", "-nodefaults", "-no-user-config", "-serial", "file:"+serial, "-qmp", "unix:"+monitor+",server=on,wait=off",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet "+behaviour)
	s.cmd.Env = append(os.Environ(), env...)
	l := &launcher{shimProcess: s.start(), monitor: monitor}
	l.eventually("vm.json", func() bool { return l.there(signals.FileVM) })
	l.until("the monitor answers", func(m signals.Moving) bool { return m.Able == signals.AbleOK })
	if len(env) == 0 {
		l.eventually("the guest is up", func() bool { return strings.Contains(readFile(t, serial), "vmgrace-guest: up") })
	}
	return l
}

func (l *launcher) until(what string, is func(signals.Moving) bool) (m signals.Moving) {
	l.t.Helper()
	l.eventually(what, func() bool { m = l.vm().Migration; return is(m) })
	return m
}

func (l *launcher) becomes(want signals.MoveState) signals.Moving {
	l.t.Helper()
	return l.until(string(want), func(m signals.Moving) bool { return m.State == want })
}

// asks writes a request into status.json and waits for the answer.
func (l *launcher) asks(r grace.MoveRequest) signals.Moving {
	l.t.Helper()
	l.n++
	r.Request = l.n
	says(l.t, l.dir, grace.Status{UID: "u-1", Phase: grace.Running, Migration: r})
	return l.until("the answer to "+string(r.Do), func(m signals.Moving) bool { return m.Requested == l.n })
}

func (l *launcher) wantOK(r grace.MoveRequest) signals.Moving {
	l.t.Helper()
	m := l.asks(r)
	if m.Result != signals.ResultOK {
		l.t.Fatalf("%s: %+v", r.Do, m)
	}
	return m
}

// ask asks QEMU itself, as somebody beside the shim.
func (l *launcher) ask(command string, into any) {
	l.t.Helper()
	conn, err := net.Dial("unix", l.monitor)
	kit.Must(l.t, err)
	defer conn.Close()
	kit.Must(l.t, conn.SetDeadline(time.Now().Add(testTimeout)))
	fmt.Fprintf(conn, "{\"execute\": \"qmp_capabilities\"}\n{\"execute\": %q, \"id\": 1}\n", command)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		answer := struct {
			ID     int `json:"id"`
			Return any `json:"return"`
		}{Return: into}
		if json.Unmarshal(lines.Bytes(), &answer) == nil && answer.ID == 1 {
			return
		}
	}
	l.t.Fatalf("no answer to %s", command)
}

func (l *launcher) status() string {
	l.t.Helper()
	var s struct {
		Status string `json:"status"`
	}
	l.ask("query-status", &s)
	return s.Status
}

// kill ends QEMU as the agent does.
func (l *launcher) kill() {
	l.t.Helper()
	kit.Must(l.t, syscall.Kill(l.vm().PID, syscall.SIGKILL))
}

// moved is what the agent says after that.
func moved() grace.Status {
	return grace.Status{UID: "u-1", Phase: grace.Stopped, Outcome: grace.Migrated, EndedAt: time.Now()}
}

// relayed makes both launchers' migration.sock, and carries bytes from one to the other, as the agents do.
func relayed(t *testing.T, source, target *launcher) {
	t.Helper()
	ctx, cut := context.WithCancel(t.Context())
	var carried sync.WaitGroup
	t.Cleanup(func() { cut(); carried.Wait() })
	accept := func(l *launcher) <-chan net.Conn {
		listener, err := net.Listen("unix", filepath.Join(l.dir, signals.FileMigration))
		kit.Must(t, err)
		conn := make(chan net.Conn, 1)
		context.AfterFunc(ctx, func() { listener.Close() })
		carried.Go(func() {
			defer close(conn)
			if c, err := listener.Accept(); err == nil {
				context.AfterFunc(ctx, func() { c.Close() })
				conn <- c
			}
		})
		return conn
	}
	from, to := accept(source), accept(target)
	carried.Go(func() {
		a, b := <-from, <-to
		if a == nil || b == nil {
			return
		}
		carried.Go(func() { _, _ = io.Copy(a, b); a.Close() })
		_, _ = io.Copy(b, a)
		b.Close()
	})
}

const incoming = "VMGRACE_INCOMING=m-1"

func TestAGuestIsMovedFromOneLauncherToAnother(t *testing.T) {
	// Given
	source, target := boot(t, ""), boot(t, "", incoming)
	want := signals.Machine{Type: "pc-q35-7.2", Accelerator: "tcg", CPU: "qemu64", Features: source.vm().Migration.Machine.Features}
	if m := source.vm().Migration; m.Machine != want || m.State != signals.StateNone || m.Guest != signals.GuestRunning {
		t.Errorf("the source says %+v", m)
	}
	if m := target.vm().Migration; m.Machine != want || m.State != signals.StateSetup || m.Requested != 0 {
		t.Errorf("the target says %+v", m)
	}
	if m := target.asks(grace.MoveRequest{Do: grace.MoveCont}); m.Result == signals.ResultOK {
		t.Fatalf("a guest that has not arrived was told to run: %+v", m)
	}
	relayed(t, source, target)
	// When
	target.wantOK(grace.MoveRequest{Do: grace.MoveIncoming})
	source.wantOK(grace.MoveRequest{Do: grace.MoveMigrate})
	// Then it is stopped on both sides, and runs on only when it is told to.
	left, arrived := source.becomes(signals.StateCompleted), target.becomes(signals.StateArrived)
	if left.Downtime == 0 || arrived.Guest != signals.GuestPaused {
		t.Errorf("the source says %+v, the target %+v", left, arrived)
	}
	if s, d := source.status(), target.status(); s != "postmigrate" || d != "paused" {
		t.Errorf("source %s, target %s", s, d)
	}
	source.kill()
	says(t, source.dir, moved())
	source.wantExit(0)
	target.wantOK(grace.MoveRequest{Do: grace.MoveCont})
	target.becomes(signals.StateRunning)
	if s := target.status(); s != "running" {
		t.Errorf("the target is %s", s)
	}
	// And it hears its power button there: it is the guest that had booted.
	says(t, target.dir, grace.Status{UID: "u-1", Phase: grace.ShuttingDown, Request: 1})
	target.wantExit(0)
	if source.there(signals.FileVM) || target.there(signals.FileVM) {
		t.Error("vm.json is left")
	}
}

// Given a CPU of one model, of which the host of the other QEMU lacks a feature: QEMU leaves that out, and
// goes on. Then the two machines differ. Otherwise a guest would be moved to where an instruction that it
// uses is missing.
func TestACPUThatLacksAFeatureIsAnother(t *testing.T) {
	whole, lacking := boot(t, "", incoming).vm().Migration.Machine, bootCPU(t, "qemu64,-sse3", "", incoming).vm().Migration.Machine
	if whole.Features == "" || whole.Features == lacking.Features || whole.CPU != lacking.CPU {
		t.Errorf("%+v and %+v", whole, lacking)
	}
}

func TestALauncherWhoseGuestIsAwayNeedsTheAgentsWord(t *testing.T) {
	source, target := boot(t, ""), boot(t, "", incoming)
	relayed(t, source, target)
	target.wantOK(grace.MoveRequest{Do: grace.MoveIncoming})
	source.wantOK(grace.MoveRequest{Do: grace.MoveMigrate})
	source.becomes(signals.StateCompleted)
	target.becomes(signals.StateArrived)
	source.kill()
	source.wantExit(128 + 9)
	// And the target's ends with its QEMU.
	target.kill()
	target.wantExit(128 + 9)
}

func TestAShimWhoseGuestCanBeMovedIsSmallAndSleeps(t *testing.T) {
	s := boot(t, "")
	s.staysFor(time.Second)
	before := switches(t, s.cmd.Process.Pid)
	s.staysFor(5 * time.Second)
	if n := switches(t, s.cmd.Process.Pid) - before; n > 2*5 {
		t.Errorf("its threads were switched %d times in 5 s", n)
	}
	wantSmall(t, s.cmd.Process.Pid)
}
