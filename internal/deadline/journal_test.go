package deadline

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/process"
)

// newJournal is a name for one, on a tmpfs.
func newJournal(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "vmgrace-test-") //nolint:usetesting // it has to be a tmpfs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "journal")
}

func opened(t *testing.T, path string) (thread *Thread, said string) {
	t.Helper()
	var log bytes.Buffer
	thread, err := Start(slog.New(slog.NewTextHandler(&log, nil)), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = thread.Close() })
	return thread, log.String()
}

// The first thread stands for an agent that is killed: nothing of it is closed
// before the second looks.
func TestTheNextAgentKnowsWhoWasSignalled(t *testing.T) {
	// given
	path := newJournal(t)
	first, _ := opened(t, path)
	deaf, wait := child(t)
	spared, _ := child(t)
	gone, waitGone := child(t)
	if err := gone.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone()
	// when
	for _, p := range []*process.Process{deaf, gone} {
		<-arm(t, first, p, now()).Sent()
	}
	held := arm(t, first, spared, now().Add(time.Hour))
	wait()
	// then
	second, _ := opened(t, path)
	for _, c := range []struct {
		what string
		p    *process.Process
		want bool
	}{{"signalled", deaf, true}, {"armed only", spared, false}, {"gone before its deadline", gone, false}} {
		if got := second.Signalled(c.p.PID(), c.p.StartTime()); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
	if second.Signalled(deaf.PID(), deaf.StartTime()+1) {
		t.Error("another process with its pid counts as signalled")
	}
	if !held.Disarm() {
		t.Error("the deadline of the one that was spared has come")
	}
}

func TestAJournalThatIsFullForgetsTheOldest(t *testing.T) {
	// given
	path := newJournal(t)
	first, _ := opened(t, path)
	send := func(p *process.Process) {
		t.Helper()
		if s := <-arm(t, first, p, now()).Sent(); s.Err != nil {
			t.Fatal(s.Err)
		}
	}
	oldest, wait := child(t)
	send(oldest)
	wait()
	// when
	newest, _ := shell(t, "trap '' TERM; echo; exec sleep infinity")
	for range len(first.journal.shared().entries) {
		send(newest)
	}
	// then
	second, _ := opened(t, path)
	if second.Signalled(oldest.PID(), oldest.StartTime()) || !second.Signalled(newest.PID(), newest.StartTime()) {
		t.Error("it is not the oldest that is forgotten")
	}
}

func TestWithoutAJournalSignalsAreSentAllTheSame(t *testing.T) {
	foreign, dir, link := newJournal(t), newJournal(t), newJournal(t)
	if err := os.WriteFile(foreign, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(foreign, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(newJournal(t), link); err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{
		"a file that others may write": foreign, "a directory": dir, "a link": link,
		"not on a tmpfs": "/proc/self/comm", "nowhere": "/dev/shm/vmgrace-test-none/journal",
	} {
		t.Run(what, func(t *testing.T) {
			thread, said := opened(t, path)
			if !strings.Contains(said, "signals are not noted") {
				t.Errorf("said %q", said)
			}
			p, wait := child(t)
			if s := <-arm(t, thread, p, now()).Sent(); s.Err != nil {
				t.Error(s.Err)
			}
			wait()
			if thread.Signalled(p.PID(), p.StartTime()) {
				t.Error("known, from nowhere")
			}
		})
	}
}
