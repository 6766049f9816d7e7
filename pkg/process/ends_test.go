package process

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func waiting(t *testing.T) *Ends {
	t.Helper()
	e, err := WaitForEnds()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func watched(t *testing.T, e *Ends, cmd *exec.Cmd) *Watched {
	t.Helper()
	w, err := e.Watch(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func TestManyEndsAreNoticedByOneGoroutineAndEachByItself(t *testing.T) {
	e := waiting(t)
	before := runtime.NumGoroutine()
	var cmds []*exec.Cmd
	var all []*Watched
	for range 100 { // more than are taken at once
		cmd := sleeper(t)
		cmds, all = append(cmds, cmd), append(all, watched(t, e, cmd))
		all[len(all)-1].Done()
	}
	if now := runtime.NumGoroutine(); now > before+10 {
		t.Errorf("%d goroutines wait for %d processes", now-before, len(all))
	}
	for i, w := range all {
		if i%10 != 0 {
			_ = cmds[i].Process.Signal(unix.SIGKILL)
			ends(t, &Process{w})
		}
	}
	for i, w := range all {
		if i%10 == 0 && (w.Gone() || closed(w)) {
			t.Error("the end of another process ends this one")
		}
	}
}

func closed(w *Watched) bool {
	select {
	case <-w.Done():
		return true
	default:
		return false
	}
}

// The kernel gives the lowest free number to the next descriptor.
func TestTheEndOfAProcessThatWasClosedIsNoOtherOnes(t *testing.T) {
	e := waiting(t)
	first, second := sleeper(t), sleeper(t)
	start := started(t, first.Process.Pid)
	for range 50 {
		p, err := e.Open(first.Process.Pid, start)
		if err != nil {
			t.Fatal(err)
		}
		duplicate, err := p.Duplicate() // as the deadline's thread has one
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(duplicate)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w := watched(t, e, second)
	_ = first.Process.Signal(unix.SIGKILL)
	// What ends after it is noticed after it.
	last := sleeper(t)
	after := watched(t, e, last)
	_, _ = first.Process.Wait()
	_ = last.Process.Signal(unix.SIGKILL)
	ends(t, &Process{after})
	if closed(w) || w.Gone() {
		t.Error("a process is gone because a closed one is")
	}
}

func TestAnEndsThatIsClosedLeavesItsProcessesAlone(t *testing.T) {
	e, err := WaitForEnds()
	if err != nil {
		t.Fatal(err)
	}
	cmd := sleeper(t)
	w := watched(t, e, cmd)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if closed(w) || w.Gone() {
		t.Error("closing looks like the end of the process")
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := e.Watch(cmd.Process.Pid); err == nil {
		t.Error("what cannot be waited for can be watched")
	}
	if _, err := e.Open(cmd.Process.Pid, 0); !errors.Is(err, ErrNoStart) {
		t.Errorf("opened without a start time: %v", err)
	}
}
