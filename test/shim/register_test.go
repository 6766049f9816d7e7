package shim

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestVMFileSaysWhatTheFlagsOrTheEnvironmentSay(t *testing.T) {
	pid, _ := vm(t)
	s := started(t, t.TempDir(), "--pid", pid, "--grace-period", "1500ms")
	e := prepare(t, t.TempDir(), "--pid", pid)
	e.cmd.Args = []string{binary, "--launcher-dir", e.dir, "--pid", pid}
	e.cmd.Env = append(os.Environ(), "VM_NAMESPACE=ns", "VM_NAME=vm", "VM_UID=u-1", "VM_GRACE_PERIOD_SECONDS=0")
	e.start().eventually("vm.json", func() bool { return e.there(signals.FileVM) })
	for s, grace := range map[*shimProcess]string{s: "2", e: "0"} {
		got, err := signals.ParseVM([]byte(readFile(t, filepath.Join(s.dir, signals.FileVM))))
		if want := (signals.VM{Namespace: "ns", Name: "vm", UID: "u-1", Grace: grace}); err != nil || got != want {
			t.Errorf("vm.json says %+v, %v", got, err)
		}
	}
}

func TestTheLockOutlivesACommandThatStartsAndEnds(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	s := started(t, t.TempDir(), "--", "sh", "-c", `true; sh -c true & wait; echo done > "$0"; sleep 300`, out)
	s.eventually("children have come and gone", func() bool { return readFile(t, out) == "done" })
	if got := s.holder(); got != s.cmd.Process.Pid {
		t.Errorf("the lock is held by %d", got)
	}
}

func TestALateDirectoryHoldsUpNeitherTheCommandNorTheTrigger(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "late"), filepath.Join(t.TempDir(), "out")
	s := prepare(t, dir, "--", "sh", "-c", `echo up > "$0"; sleep 300`, out).start()
	s.eventually("the command", func() bool { return readFile(t, out) == "up" })
	s.signal(syscall.SIGTERM)
	s.staysFor(350 * time.Millisecond)
	if n := strings.Count(s.stderr.String(), "no such file"); n != 1 {
		t.Errorf("%d lines about the missing directory", n)
	}
	kit.Must(t, os.Mkdir(dir, 0o755))
	kit.Must(t, os.WriteFile(filepath.Join(dir, "shutdown.x"), nil, 0o600))
	if got := s.trigger(); got.UID != "u-1" || got.Signal != "SIGTERM" {
		t.Errorf("%+v", got)
	}
	if got := s.holder(); got != s.cmd.Process.Pid {
		t.Errorf("registered too late: the lock is held by %d", got)
	}
}

func TestADirectoryThatNeverComesDoesNotKeepTheShim(t *testing.T) {
	prepare(t, "/no/such/directory", "--", "sh", "-c", "exit 4").start().wantExit(4)
}
