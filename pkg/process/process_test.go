package process

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sleeper starts a process that lives until the test ends.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func started(t *testing.T, pid int) uint64 {
	t.Helper()
	start, err := Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	return start
}

func opened(t *testing.T, pid int, start uint64) *Process {
	t.Helper()
	p, err := Open(pid, start)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ends(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the process is not noticed")
	}
}

func TestTheEndIsNoticedBeforeAnybodyReaps(t *testing.T) {
	cmd := sleeper(t)
	p := opened(t, cmd.Process.Pid, started(t, cmd.Process.Pid))
	defer p.Close()
	if p.Gone() {
		t.Fatal("gone while it lives")
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ends(t, p) // a zombie: nobody has waited for it
	if !p.Gone() {
		t.Error("a zombie counts as gone")
	}
	if _, err := Open(cmd.Process.Pid, p.StartTime()); !errors.Is(err, ErrGone) {
		t.Errorf("opening a zombie: %v", err)
	}
	if _, err := Watch(cmd.Process.Pid); !errors.Is(err, ErrGone) {
		t.Errorf("watching a zombie: %v", err)
	}
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("signal to a zombie: %v", err)
	}
	_ = cmd.Wait()
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("signal after the end: %v", err)
	}
	if _, err := Open(cmd.Process.Pid, p.StartTime()); !errors.Is(err, ErrGone) {
		t.Errorf("open after the end: %v", err)
	}
}

func TestAPidThatStartedAtAnotherTimeIsAnotherProcess(t *testing.T) {
	cmd := sleeper(t)
	start, err := Start(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := opened(t, cmd.Process.Pid, start)
	defer p.Close()
	if p.StartTime() != start || p.PID() != cmd.Process.Pid {
		t.Errorf("opened %d/%d, want %d/%d", p.PID(), p.StartTime(), cmd.Process.Pid, start)
	}
	if _, err := Open(cmd.Process.Pid, start-1); !errors.Is(err, ErrGone) {
		t.Errorf("another start time: %v", err)
	}
}

func TestTheAgeOfAProcess(t *testing.T) {
	for pid, oldest := range map[int]time.Duration{sleeper(t).Process.Pid: time.Minute, os.Getpid(): time.Hour} {
		if age := Age(started(t, pid)); age < 0 || age > oldest {
			t.Errorf("process %d of this test started %v ago", pid, age)
		}
	}
}

func TestAProcessWithoutAStartTimeIsNotOpened(t *testing.T) {
	pid := sleeper(t).Process.Pid
	if p, err := Open(pid, 0); !errors.Is(err, ErrNoStart) || p != nil {
		t.Errorf("opened %v, %v", p, err)
	}
	if err := Check(pid, 0); !errors.Is(err, ErrNoStart) {
		t.Errorf("checked: %v", err)
	}
	// It may be watched, which harms nobody: there is no way to signal it.
	w, err := Watch(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.PID() != pid || w.StartTime() != started(t, pid) || w.Gone() {
		t.Errorf("watching %d/%d, gone %t", w.PID(), w.StartTime(), w.Gone())
	}
	if _, can := any(w).(interface{ Signal(unix.Signal) error }); can {
		t.Error("what is only watched can be signalled")
	}
}

func TestNonsensePids(t *testing.T) {
	for _, pid := range []int{-1, 0, 1 << 30} {
		if p, err := Open(pid, 1); err == nil {
			_ = p.Close()
			t.Errorf("pid %d could be opened", pid)
		}
		if w, err := Watch(pid); err == nil {
			_ = w.Close()
			t.Errorf("pid %d could be watched", pid)
		}
	}
}

func TestStartSkipsTheCommandsName(t *testing.T) {
	rest := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	for _, comm := range []string{"qemu", "a b", "a) S 9 (b", "))) 1 2 3"} {
		if got, err := parse([]byte("42 (" + comm + ")" + rest)); err != nil || got != 4711 {
			t.Errorf("(%s): %d, %v", comm, got, err)
		}
	}
	for _, broken := range []string{"", "42 (x) S 1 2", "42 (x)" + strings.ReplaceAll(rest, "4711", "x")} {
		if _, err := parse([]byte(broken)); err == nil {
			t.Errorf("%q is accepted", broken)
		}
	}
}

func TestACheckSeesWhatOpenSees(t *testing.T) {
	cmd := sleeper(t)
	pid := cmd.Process.Pid
	start, err := Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(pid, start); err != nil {
		t.Errorf("a process that lives: %v", err)
	}
	if err := Check(pid, start+1); !errors.Is(err, ErrGone) {
		t.Errorf("a pid that is another's now: %v", err)
	}
	p := opened(t, pid, start)
	defer p.Close()
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ends(t, p)
	if err := Check(pid, start); !errors.Is(err, ErrGone) {
		t.Errorf("a zombie: %v", err)
	}
	_ = cmd.Wait()
	if err := Check(pid, start); !errors.Is(err, ErrGone) {
		t.Errorf("a process that was reaped: %v", err)
	}
}
