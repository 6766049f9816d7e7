package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// request makes a request as the agent does: it writes status.json by rename.
func (s *shimProcess) request(uid string, n uint64) {
	s.t.Helper()
	temp := filepath.Join(s.dir, ".status.test")
	kit.Must(s.t, os.WriteFile(temp, signals.EncodeStatus(grace.Status{UID: uid, Phase: grace.ShuttingDown, Request: n}), 0o600))
	kit.Must(s.t, os.Rename(temp, filepath.Join(s.dir, signals.FileStatus)))
}

func (s *shimProcess) vm() signals.VM {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(s.dir, signals.FileVM))
	kit.Must(s.t, err)
	vm, err := signals.ParseVM(content)
	kit.Must(s.t, err)
	return vm
}

func (s *shimProcess) answers(n uint64) signals.VM {
	s.t.Helper()
	s.eventually(fmt.Sprintf("the answer to request %d", n), func() bool { return s.vm().Requested == n })
	return s.vm()
}

// script writes a shell script and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	kit.Program(t, path, "#!/bin/sh\n"+text+"\n")
	return path
}

func TestARequestIsCarriedOutOnceAndAnswered(t *testing.T) {
	// Given a launcher that asks by a command.
	did := filepath.Join(t.TempDir(), "did")
	s := started(t, t.TempDir(), "--grace-period", "30", "--ask-with", "exec:"+script(t, `echo "$1" >>`+did)+" please", "--", "sleep", "300")
	s.eventually("the VM process's pid", func() bool { return s.vm().PID != 0 })
	before, holder := s.vm(), s.holder()
	file, err := os.Stat(filepath.Join(s.dir, signals.FileVM))
	kit.Must(t, err)
	// A process has no command line in the middle of its exec.
	s.eventually("its process is the VM's", func() bool {
		return strings.Contains(readFile(t, "/proc/"+strconv.Itoa(before.PID)+"/cmdline"), "sleep")
	})
	if before.Asks != signals.AsksLauncher || before.Grace != "30" {
		t.Errorf("it says %+v", before)
	}
	// When the agent sends one request twice, one for another VM, and a new one.
	s.request("u-1", 7)
	first := s.answers(7)
	s.request("u-1", 7)
	s.request("u-2", 9)
	s.request("u-1", 8)
	second := s.answers(8)
	// Then the command ran once for each new request of this VM, and the answers are in the
	// same file under the same lock. A second run would ask the guest twice.
	if got := strings.Fields(readFile(t, did)); !slices.Equal(got, []string{"please", "please"}) {
		t.Errorf("the command was run for: %q", got)
	}
	if first.Result != signals.ResultOK || second.Result != signals.ResultOK || second.PID != before.PID || second.Grace != "30" {
		t.Errorf("it says %+v, then %+v", first, second)
	}
	now, err := os.Stat(filepath.Join(s.dir, signals.FileVM))
	kit.Must(t, err)
	if !os.SameFile(file, now) || s.holder() != holder || holder == 0 {
		t.Errorf("vm.json is another file, or its lock's holder is %d, was %d", s.holder(), holder)
	}
}

func TestARequestThatFailsSaysWhy(t *testing.T) {
	for name, c := range map[string]struct{ how, want string }{
		"fails":        {"exec:/bin/sh -c false", "exit status 1"},
		"is not there": {"exec:/no/such/command", "/no/such/command"},
		"hangs":        {"exec:sleep 300", "no answer in 4s"},
		"no monitor":   {"qmp:/no/such/socket", "/no/such/socket: connect: no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := started(t, t.TempDir(), "--ask-with", c.how, "--", "sleep", "300")
			for n := range uint64(2) {
				s.request("u-1", n+1)
				if got := s.answers(n + 1).Result; !strings.Contains(got, c.want) {
					t.Errorf("the result is %q, want %q", got, c.want)
				}
			}
			if !s.running() {
				t.Error("the shim has ended")
			}
		})
	}
}

func TestARequestToAnEarlierLauncherIsNotCarriedOut(t *testing.T) {
	dir, did := t.TempDir(), filepath.Join(t.TempDir(), "did")
	old := &shimProcess{t: t, dir: dir}
	old.request("u-1", 5)
	s := started(t, dir, "--ask-with", "exec:"+script(t, "echo x >>"+did), "--", "sleep", "300")
	s.request("u-1", 6)
	s.answers(6)
	if got := readFile(t, did); got != "x" {
		t.Errorf("asked %q, want once", got)
	}
}

func TestASupervisorNamesTheVMProcess(t *testing.T) {
	// Given a command that starts the VM process and writes a pid file late.
	file := filepath.Join(t.TempDir(), "pid")
	s := started(t, t.TempDir(), "--ask-with", "exec:true", "--pid-file", file, "--",
		script(t, "sleep 0.3; sleep 300 & echo $! >"+file+"; wait; sleep 300"))
	s.eventually("the VM process's pid", func() bool { return s.vm().PID != 0 })
	pid := s.vm().PID
	if want := readFile(t, file); want != strconv.Itoa(pid) {
		t.Errorf("the VM process is %d, the pid file says %s", pid, want)
	}
	// When the VM process ends, then the shim ends too, although the command goes on.
	kit.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	s.wantExit(0)
}

func TestASignalIsPassedOnByTheAgentAlone(t *testing.T) {
	s := started(t, t.TempDir(), "--ask-with", "exec:true", "--", "sleep", "300")
	s.signal(syscall.SIGTERM)
	s.trigger()
	s.staysFor(300 * time.Millisecond)
	if s.vm().Requested != 0 {
		t.Error("it asked the guest although nobody has told it to")
	}
	kit.Must(t, syscall.Kill(s.vm().PID, syscall.SIGTERM))
	s.wantExit(128 + 15)
	if s.there(signals.FileVM) {
		t.Error("vm.json is still there")
	}
}
