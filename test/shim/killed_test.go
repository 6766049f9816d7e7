//go:build !unit

package shim

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Given a shim that strace kills just before a call that changes anything: the first of its
// kind, then the second, and so on, from its start over the signal to its orderly end. When
// the next shim starts in the same directory, then it works with what the previous one
// left, and an orderly end leaves the trigger alone. A misleading leftover could cost the
// VM its graceful shutdown.
func TestAShimKilledAtEveryStepLeavesNothingThatMisleads(t *testing.T) {
	dir, killed, left := t.TempDir(), 0, map[string]bool{}
	for _, call := range []string{"openat", "unlinkat", "renameat", "write", "pwrite64", "fchmod", "fcntl"} {
		for n := 1; killedAt(t, dir, call, n); n++ {
			killed++
			left[dirNames(t, dir)] = true
		}
		if names := dirNames(t, dir); names != signals.FileTrigger {
			t.Errorf("after an orderly end there is %q, want the trigger alone", names)
		}
	}
	t.Logf("killed at %d steps; left: %q", killed, slices.Sorted(maps.Keys(left)))
	if killed < 20 || len(left) < 4 {
		t.Error("this is not every step")
	}
}

// killedAt runs a shim from its start to its end, or until strace kills it at the nth call
// of a kind. It returns false where the shim makes no nth such call.
func killedAt(t *testing.T, dir, call string, n int) bool {
	t.Helper()
	pid, end := vm(t)
	s := prepare(t, dir, "--pid", pid)
	// With -D strace is the shim's grandchild, not its parent.
	s.cmd.Args = append([]string{"strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call,
		"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n), binary}, s.cmd.Args[1:]...)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is not installed: run make deps")
	}
	s.cmd.Path = strace
	s.cmd.Env = append(os.Environ(), "GOMAXPROCS=1") // strace counts calls per thread
	s.start()
	s.eventually("it is registered or killed", func() bool {
		return !s.running() || s.there(signals.FileVM) && s.holder() == s.cmd.Process.Pid
	})
	if s.running() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // strace may just have killed it
		s.eventually("the trigger", func() bool { return !s.running() || s.there(signals.FileTrigger) })
	}
	end()
	s.wait()
	s.leavesWhole(fmt.Sprintf("%s %d", call, n))
	status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// leavesWhole checks a directory after a kill: each file that the agent reads is complete
// or absent, nothing is locked, and no other files accumulate.
func (s *shimProcess) leavesWhole(step string) {
	s.t.Helper()
	for name := range strings.FieldsSeq(dirNames(s.t, s.dir)) {
		content := readFile(s.t, filepath.Join(s.dir, name))
		switch name {
		case signals.FileVM:
			if v, err := signals.ParseVM([]byte(content)); err != nil || v.UID != "u-1" || s.holder() != 0 {
				s.t.Errorf("killed at %s: vm.json %q (%v), locked by %d", step, content, err, s.holder())
			}
		case signals.FileTrigger:
			if signals.TriggerUID([]byte(content)) != "u-1" {
				s.t.Errorf("killed at %s: trigger %q", step, content)
			}
		case ".vm.json.new", ".shutdown.new": // the next shim removes them
		default:
			s.t.Errorf("killed at %s: left %s", step, name)
		}
	}
}
