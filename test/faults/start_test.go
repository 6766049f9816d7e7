package faults

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// deafened makes the agent write its log to a full pipe, which nobody reads yet.
func deafened(t *testing.T, a *node.Agent) *os.File {
	t.Helper()
	fifo, script := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "agent")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() })
	const size = 4096
	if _, err := unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, size); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Write(bytes.Repeat([]byte{'\n'}, size)); err != nil {
		t.Fatal(err)
	}
	text := "#!/bin/sh\nexec " + a.Path + ` "$@" 2>` + fifo + "\n"
	kit.Program(t, script, text)
	a.Path = script
	return pipe
}

func TestALogThatNobodyReadsCostsNoDeadline(t *testing.T) {
	t.Parallel()
	// Given
	n := node.New(t)
	a := n.Agent(t, "-v")
	pipe := deafened(t, a)
	a.Start(t)
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=4")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=30")
	// When
	from := deaf.SignalShim(t)
	polite.SignalShim(t)
	// Then
	deaf.WaitTerminated(t, from.Add(4*time.Second), late)
	deaf.WaitStopped(t, "LauncherSignal", "Forced")
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
	// And the log lines of the meantime are written when somebody reads.
	said := ""
	buffer := make([]byte, 64<<10)
	node.Eventually(t, soon, func() bool {
		if k, err := pipe.Read(buffer); err == nil {
			said += string(buffer[:k])
		}
		return strings.Contains(said, "node-agent starts")
	}, "the log is not written when it is read again")
}

// onExt4 prepares an agent whose state directory is an ext4 file system of its own.
func onExt4(t *testing.T, n *node.Node) *node.Agent {
	t.Helper()
	a := n.Agent(t)
	inside(t, n, `truncate -s 32M "$1.ext4" && mkfs.ext4 -q "$1.ext4" && mount -o loop "$1.ext4" "$1"`, a.StateDir)
	return a
}

// freezeStateDir makes every write to the state directory hang until thaw is called.
func freezeStateDir(t *testing.T, n *node.Node, a *node.Agent) (thaw func()) {
	t.Helper()
	inside(t, n, `fsfreeze -f "$1"`, a.StateDir)
	frozen := true
	thaw = func() {
		if frozen {
			frozen = false
			inside(t, n, `fsfreeze -u "$1"`, a.StateDir)
		}
	}
	t.Cleanup(thaw)
	return thaw
}

func TestAnAgentStartedInMidGraceOnADiskThatHangsKeepsTheDeadline(t *testing.T) {
	t.Parallel()
	// Given
	n := node.New(t)
	a := onExt4(t, n).Start(t)
	begun := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=8")
	resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=2")
	begun.SignalShim(t)
	deadline := begun.WaitBegun(t)
	persisted(t, a, begun, deadline)
	// When
	a.Kill()
	thaw := freezeStateDir(t, n, a)
	a.Launch(t)
	// Then the agent says that it is not ready, and a new shutdown works from memory.
	node.Eventually(t, soon, func() bool {
		code, _, err := a.Get(context.Background(), "/readyz")
		return err == nil && code == http.StatusServiceUnavailable
	}, "/readyz says that the agent is ready, or nothing")
	from := resting.SignalShim(t)
	resting.WaitTerminated(t, from.Add(2*time.Second), late)
	onTime(t, begun, deadline)
	// And the records of ended VMs are removed once the disk answers.
	thaw()
	begun.WaitStopped(t, "LauncherSignal", "Forced")
	resting.WaitStopped(t, "LauncherSignal", "Forced")
	node.Eventually(t, soon, a.Ready, "the agent is not ready again")
	node.Eventually(t, soon, func() bool { return len(a.Status(t)) == 0 }, "a record is left of a VM that stopped")
}

// killedOn kills the agent while it writes to a disk that hangs. The agent cannot end
// before thaw, and it keeps its lock until then.
func killedOn(t *testing.T, n *node.Node, a *node.Agent, writes *node.VM) (thaw func()) {
	t.Helper()
	thaw = freezeStateDir(t, n, a)
	writes.SignalShim(t)
	hangs := func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", a.PID()))
		return err == nil && slices.ContainsFunc(threads, func(path string) bool {
			status, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(status), "State:\tD")
		})
	}
	node.Eventually(t, soon, hangs, "the agent does not write")
	if err := a.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	before := a.Process
	t.Cleanup(func() { thaw(); before.Exited(soon) })
	node.Never(t, time.Second, func() bool { return !before.Running() }, "the agent has ended")
	return thaw
}

func TestAnAgentWhosePredecessorCannotEndKeepsItsDeadlines(t *testing.T) {
	t.Parallel()
	// Given
	n := node.New(t)
	a := onExt4(t, n).Start(t)
	begun := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=12")
	other := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3600")
	begun.SignalShim(t)
	deadline := begun.WaitBegun(t)
	persisted(t, a, begun, deadline)
	// When
	thaw := killedOn(t, n, a, other)
	a.Launch(t)
	// Then
	onTime(t, begun, deadline)
	if !a.Running() {
		t.Fatal("the agent has ended")
	}
	// And the new agent takes the state directory once it is free.
	thaw()
	begun.WaitStopped(t, "LauncherSignal", "Forced")
	node.Eventually(t, soon, a.Ready, "the agent is not ready")
	node.Eventually(t, soon, func() bool {
		s, ok := a.StatusOf(t, other.Guest)
		return ok && s.Phase == "ShuttingDown" && len(a.Status(t)) == 1
	},
		"what was begun meanwhile is not on disk")
}

// hangStateDir makes everything that is done in the state directory hang, reads too, until
// answer is called. It mounts a FUSE file system there whose requests nobody serves.
func hangStateDir(t *testing.T, n *node.Node, a *node.Agent) (answer func()) {
	t.Helper()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	mount := n.Command("mount", "-i", "-t", "fuse", "-o", "fd=3,rootmode=40000,user_id=0,group_id=0", "vmgrace-test", a.StateDir)
	mount.ExtraFiles = []*os.File{server}
	if out, err := mount.CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	hangs := true
	answer = func() {
		if hangs {
			hangs = false
			inside(t, n, `umount -l "$1"`, a.StateDir)
			_ = server.Close() // the calls that hang fail
		}
	}
	t.Cleanup(answer)
	return answer
}

func TestAnAgentWithUnreadableRecordsWorksFromMemory(t *testing.T) {
	t.Parallel()
	// Given
	n := node.New(t)
	a := n.Agent(t).Start(t)
	begun := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=15")
	resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=2")
	begun.SignalShim(t)
	deadline := begun.WaitBegun(t)
	persisted(t, a, begun, deadline)
	// When
	a.Kill()
	answer := hangStateDir(t, n, a)
	launched := time.Now()
	a.Launch(t)
	// Then the agent reports the disk within 2 s of its start (it waits 1 s for the disk)
	// and that it is not ready, and a new shutdown works from memory.
	node.Eventually(t, soon, func() bool { return a.Said("the state directory cannot be read: its disk hangs") == 1 }, "it is not said")
	n.Within(t, 2*time.Second, launched, time.Now(), "it is said")
	node.Eventually(t, soon, func() bool {
		code, _, err := a.Get(context.Background(), "/readyz")
		return err == nil && code == http.StatusServiceUnavailable
	}, "/readyz says that the agent is ready, or nothing")
	guards := fmt.Sprintf("guarding a VM\" namespace=%s name=%s ", resting.Namespace, resting.Name)
	node.Eventually(t, soon, func() bool { return a.Said(guards) == 2 }, "the new agent does not look at the VM")
	from := resting.SignalShim(t)
	resting.WaitTerminated(t, from.Add(2*time.Second), late)
	// And the records count once the agent can read them.
	answer()
	onTime(t, begun, deadline)
	begun.WaitStopped(t, "LauncherSignal", "Forced")
	resting.WaitStopped(t, "LauncherSignal", "Forced")
	node.Eventually(t, soon, a.Ready, "the agent is not ready again")
	node.Eventually(t, soon, func() bool { return len(a.Status(t)) == 0 }, "a record is left of a VM that stopped")
}

func TestAnAgentStartedInMidGraceSignalsWhateverElseIsMissing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	for name, take := range map[string]func(*testing.T, *node.Agent){
		"metrics port": func(t *testing.T, a *node.Agent) {
			t.Helper()
			var config net.ListenConfig
			l, err := config.Listen(t.Context(), "tcp", a.Address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		},
		"launchers directory": func(t *testing.T, a *node.Agent) {
			t.Helper()
			if err := os.Rename(a.LaunchersDir, a.LaunchersDir+".away"); err != nil {
				t.Fatal(err)
			}
		},
		"libvirt's client library": func(t *testing.T, a *node.Agent) {
			t.Helper()
			libs, err := filepath.Glob("/usr/lib/*/libvirt.so.0*")
			if err != nil || len(libs) == 0 {
				t.Fatal("where is libvirt.so.0?", err)
			}
			// The agent runs in its own mount namespace, in which the library is hidden.
			script := filepath.Join(t.TempDir(), "agent")
			hide := "for l in " + strings.Join(libs, " ") + "; do mount --bind /dev/null $l || exit; done\n"
			text := "#!/bin/sh\n[ -n \"$HIDDEN\" ] || HIDDEN=1 exec unshare -m \"$0\" \"$@\"\n" + hide + "exec " + a.Path + ` "$@"` + "\n"
			kit.Program(t, script, text)
			a.Path = script
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Given
			a := n.Agent(t).Start(t)
			v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=6")
			v.SignalShim(t)
			deadline := v.WaitBegun(t)
			persisted(t, a, v, deadline)
			a.Kill()
			// When
			take(t, a)
			a.Launch(t)
			// Then
			a.WaitSaid(t, "going on because a grace period is under way", 1)
			onTime(t, v, deadline)
			// And after the grace period it ends, as it does if it starts without one.
			if code, ok := a.Exited(soon); !ok || code != 1 {
				t.Errorf("exit status %d, ended %t", code, ok)
			}
		})
	}
}
