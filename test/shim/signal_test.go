package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestEachRequestSignalWritesTheTriggerAndTheShimStays(t *testing.T) {
	for sig, name := range map[syscall.Signal]string{
		syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT",
		syscall.SIGUSR1: "SIGUSR1", syscall.SIGUSR2: "SIGUSR2", syscall.SIGPWR: "SIGPWR", syscall.SIGWINCH: "SIGWINCH",
		syscall.SIGALRM: "SIGALRM", syscall.SIGABRT: "SIGABRT", syscall.SIGSEGV: "SIGSEGV", syscall.SIGTSTP: "SIGTSTP", syscall.SIGIO: "SIGIO",
		35: "SIGRTMIN+1", 37: "SIGRTMIN+3", 64: "SIGRTMIN+30",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pid, end := vm(t)
			s := prepare(t, t.TempDir(), "--pid", pid)
			s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal sends SIGWINCH
			s.start().eventually("vm.json", func() bool { return s.there(signals.FileVM) })
			before := time.Now().Add(-time.Millisecond)
			s.signal(sig)
			got := s.trigger()
			if got.UID != "u-1" || got.Signal != name || got.Time.Before(before.Truncate(time.Millisecond)) || got.Time.After(time.Now()) {
				t.Errorf("the trigger says %+v", got)
			}
			if !s.running() {
				t.Fatal("the shim ended before the VM process")
			}
			end()
			s.wantExit(0)
			if s.there(signals.FileVM) || !s.there(signals.FileTrigger) {
				t.Error("an orderly end removes vm.json and leaves the trigger")
			}
		})
	}
}

func TestOtherSignalsAreNoRequest(t *testing.T) {
	pid, _ := vm(t)
	s := started(t, t.TempDir(), "--pid", pid)
	for _, sig := range []syscall.Signal{syscall.SIGURG, syscall.SIGCHLD, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT} {
		s.signal(sig)
	}
	// SIGHUP is sent last, and the trigger names it.
	s.signal(syscall.SIGHUP)
	if got := s.trigger(); got.Signal != "SIGHUP" || !s.running() {
		t.Errorf("%+v", got)
	}
}

// Given a launcher with a terminal. When the terminal is resized, then the VM goes on.
func TestATerminalThatIsResizedIsNoRequest(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	kit.Must(t, err)
	defer terminal.Close()
	kit.Must(t, unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	kit.Must(t, err)
	far, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	kit.Must(t, err)
	defer far.Close()
	pid, _ := vm(t)
	s := prepare(t, t.TempDir(), "--pid", pid)
	s.cmd.Stdin, s.cmd.SysProcAttr = far, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	s.start().eventually("vm.json", func() bool { return s.there(signals.FileVM) })
	kit.Must(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 132}))
	s.signal(syscall.SIGPWR) // of two that are pending the lower number comes first
	if got := s.trigger(); got.Signal != "SIGPWR" {
		t.Errorf("%+v", got)
	}
}

func TestSecondSignalMovesNothing(t *testing.T) {
	pid, end := vm(t)
	s := started(t, t.TempDir(), "--pid", pid)
	s.signal(syscall.SIGTERM)
	first := s.trigger()
	path := filepath.Join(s.dir, signals.FileTrigger)
	info, err := os.Stat(path)
	kit.Must(t, err)
	for range 100 {
		s.signal(syscall.SIGTERM)
		s.signal(syscall.SIGINT)
	}
	end()
	s.wantExit(0) // by now the shim has received all signals
	if again, err := os.Stat(path); err != nil || !os.SameFile(info, again) || s.trigger() != first {
		t.Errorf("the trigger was written again: %v", err)
	}
	if n := strings.Count(s.stderr.String(), "asked the agent"); n != 1 {
		t.Errorf("%d lines about it", n)
	}
}

func TestSignalIsNotForwarded(t *testing.T) {
	dir, heard := t.TempDir(), filepath.Join(t.TempDir(), "heard")
	script := `trap 'echo TERM >> "$0"' TERM INT HUP QUIT; echo up > "$0.up"; while [ -e "$0.up" ] && [ ! -e "$0.end" ]; do sleep 0.01; done; exit 7`
	s := prepare(t, dir, "--", "sh", "-c", script, heard)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.start()
	s.eventually("the command", func() bool { return readFile(t, heard+".up") == "up" })
	// The signals go to the whole group, as a terminal sends Ctrl-C.
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		kit.Must(t, syscall.Kill(-s.cmd.Process.Pid, sig))
	}
	s.trigger()
	kit.Must(t, os.WriteFile(heard+".end", nil, 0o600))
	s.wantExit(7)
	if got := readFile(t, heard); got != "" {
		t.Errorf("the command heard %s", got)
	}
}

func TestSignalBeforeThePIDFileExists(t *testing.T) {
	dir, pidFile := t.TempDir(), filepath.Join(t.TempDir(), "pid")
	s := started(t, dir, "--pid-file", pidFile)
	s.signal(syscall.SIGTERM)
	s.trigger()
	pid, end := vm(t)
	kit.Must(t, os.WriteFile(pidFile, []byte(pid+"\n"), 0o600))
	s.eventually("the process is watched", func() bool { return strings.Contains(s.stderr.String(), "watching process "+pid) })
	// When the shim watches a process, then status.json no longer ends the shim.
	kit.Must(t, os.WriteFile(filepath.Join(dir, signals.FileStatus), signals.EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Stopped}), 0o600))
	s.staysFor(300 * time.Millisecond)
	end()
	s.wantExit(0)
}

func TestSignalledWithoutAVMEndsWhenTheAgentSaysStopped(t *testing.T) {
	dir := t.TempDir()
	s := started(t, dir, "--pid-file", filepath.Join(dir, "never"))
	status := func(uid string, phase grace.Phase) {
		path := filepath.Join(dir, signals.FileStatus)
		kit.Must(t, os.WriteFile(path+".x", signals.EncodeStatus(grace.Status{UID: uid, Phase: phase}), 0o600))
		kit.Must(t, os.Rename(path+".x", path))
	}
	status("u-1", grace.Stopped)
	s.staysFor(300 * time.Millisecond) // the shim was not signalled
	status("u-2", grace.Stopped)
	s.signal(syscall.SIGTERM)
	s.trigger()
	s.staysFor(300 * time.Millisecond) // that was the end of another VM
	status("u-1", grace.ShuttingDown)
	s.staysFor(300 * time.Millisecond)
	status("u-1", grace.Stopped)
	s.wantExit(0)
	if s.there(signals.FileVM) || !s.there(signals.FileTrigger) {
		t.Error("an orderly end removes vm.json and leaves the trigger")
	}
}

// staysFor checks that the shim does not end for that time. A slow machine can hide a
// mistake here, but cannot cause a false failure.
func (s *shimProcess) staysFor(d time.Duration) {
	s.t.Helper()
	select {
	case <-s.ended:
		s.t.Fatal("the shim ended")
	case <-time.After(d):
	}
}

// Given a shim that is signalled right after exec(2). The signal may arrive before the Go
// runtime has installed its handlers, and the kernel ends the shim in that case. Then
// either the trigger is there, or the shim had not begun anything. A registered shim that
// ended without a trigger would lose the request.
func TestSignalRightAfterExecIsAnsweredOrNothingHadBegun(t *testing.T) {
	pid, _ := vm(t)
	early := 0
	for i := range 60 {
		s := prepare(t, t.TempDir(), "--pid", pid).start()
		for end := time.Now().Add(time.Duration(i) * 100 * time.Microsecond); time.Now().Before(end); {
		}
		s.signal(syscall.SIGTERM)
		s.eventually("trigger or end", func() bool { return s.there(signals.FileTrigger) || !s.running() })
		if s.there(signals.FileTrigger) {
			if !s.running() {
				t.Errorf("run %d: the trigger is there and the shim gone: %v", i, s.cmd.ProcessState)
			}
			continue
		}
		early++
		if s.there(signals.FileVM) || s.stderr.String() != "" {
			t.Errorf("run %d: a registered shim ended without a trigger: %v", i, s.cmd.ProcessState)
		}
	}
	t.Logf("%d of 60 came before the runtime was up", early)
}

func TestALogThatNobodyReadsHoldsUpNothing(t *testing.T) {
	r, w, err := os.Pipe()
	kit.Must(t, err)
	defer r.Close()
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	kit.Must(t, err)
	_, err = w.Write(make([]byte, size))
	kit.Must(t, err)
	pid, end := vm(t)
	s := prepare(t, t.TempDir(), "--pid", pid)
	s.cmd.Stderr = w
	s.start()
	kit.Must(t, w.Close())
	s.eventually("vm.json", func() bool { return s.there(signals.FileVM) })
	s.signal(syscall.SIGTERM)
	s.trigger()
	end()
	s.wantExit(0)
}

func TestALogWhoseReaderIsGoneDoesNotEndTheShim(t *testing.T) {
	r, w, err := os.Pipe()
	kit.Must(t, err)
	pid, end := vm(t)
	s := prepare(t, t.TempDir(), "--pid", pid)
	s.cmd.Stderr = w
	kit.Must(t, r.Close())
	s.start()
	kit.Must(t, w.Close())
	s.eventually("vm.json", func() bool { return s.there(signals.FileVM) })
	s.signal(syscall.SIGTERM)
	s.trigger()
	end()
	s.wantExit(0)
}

func TestTheCommandGetsDefaultSignals(t *testing.T) {
	const ask = `exec sed -nE "s/^Sig(Ign|Blk)://p" /proc/self/status`
	s := prepare(t, t.TempDir(), "--", "sh", "-c", ask)
	var out output
	s.cmd.Stdout = &out
	s.start().wantExit(0)
	// The process that runs this test may ignore some signals itself, as nohup does.
	plain, err := exec.Command("sh", "-c", ask).Output()
	kit.Must(t, err)
	got, before := masks(t, out.String()), masks(t, string(plain))
	for i, what := range []string{"blocks", "ignores"} {
		if more := got[i] &^ before[i]; more != 0 {
			t.Errorf("the command %s %#x, which it does not without the shim", what, more)
		}
	}
}

func masks(t *testing.T, text string) (m [2]uint64) {
	t.Helper()
	if _, err := fmt.Sscanf(text, "%x\n%x", &m[0], &m[1]); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return m
}
