package shim

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

func TestTheLockIsThereWhenVMFileAppears(t *testing.T) {
	pid, end := vm(t)
	for range 20 {
		s := prepare(t, t.TempDir(), "--pid", pid).start()
		// A busy loop sees the file as early as possible.
		for begin := time.Now(); !s.there(signals.FileVM) && time.Since(begin) < testTimeout; {
		}
		if got := s.holder(); got != s.cmd.Process.Pid {
			t.Fatalf("vm.json became visible with the lock held by %d, not %d", got, s.cmd.Process.Pid)
		}
	}
	s := started(t, t.TempDir(), "--pid", pid)
	s.signal(syscall.SIGTERM)
	s.trigger()
	if got := s.holder(); got != s.cmd.Process.Pid {
		t.Errorf("after the trigger the lock is held by %d", got)
	}
	end()
	s.wantExit(0)
}

func TestTheLockOutlivesACommandThatStartsAndEnds(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	s := started(t, t.TempDir(), "--", "sh", "-c", `true; sh -c true & wait; echo done > "$0"; sleep 300`, out)
	s.eventually("children have come and gone", func() bool { return readFile(t, out) == "done" })
	if got := s.holder(); got != s.cmd.Process.Pid {
		t.Errorf("the lock is held by %d", got)
	}
}

func TestAKilledShimLeavesVMFileUnlocked(t *testing.T) {
	pid, _ := vm(t)
	s := started(t, t.TempDir(), "--pid", pid)
	s.signal(syscall.SIGKILL)
	s.wait()
	if !s.there(signals.FileVM) || s.holder() != 0 {
		t.Error("after SIGKILL vm.json is there and unlocked")
	}
	// The next shim replaces the registration and leaves nothing of it.
	pid2, end := vm(t)
	next := started(t, s.dir, "--pid", pid2)
	next.eventually("the next one's lock", func() bool { return next.holder() == next.cmd.Process.Pid })
	end()
	next.wantExit(0)
	if names := dirNames(t, s.dir); names != "" {
		t.Errorf("left: %s", names)
	}
}

func TestStaleTriggerIsClearedBeforeTheRegistration(t *testing.T) {
	dir := t.TempDir()
	kit.Must(t, os.WriteFile(filepath.Join(dir, signals.FileTrigger), []byte("{}"), 0o600))
	pid, _ := vm(t)
	s := started(t, dir, "--pid", pid)
	if s.there(signals.FileTrigger) {
		t.Error("the stale trigger is there with the new vm.json")
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

func TestARecreatedDirectoryGetsTheTrigger(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	kit.Must(t, os.Mkdir(dir, 0o755))
	pid, _ := vm(t)
	s := started(t, dir, "--pid", pid)
	kit.Must(t, os.RemoveAll(dir))
	kit.Must(t, os.Mkdir(dir, 0o755))
	s.signal(syscall.SIGTERM)
	s.trigger()
	if got := s.holder(); got != s.cmd.Process.Pid {
		t.Errorf("the lock is held by %d", got)
	}
}

func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	kit.Must(t, err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}
