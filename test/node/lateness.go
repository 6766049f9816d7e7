package node

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tick is how long the thread of a Lateness sleeps each time.
const tick = time.Millisecond

// Lateness is a plain thread that repeatedly sleeps for a millisecond and notes how late it
// wakes. A promise in milliseconds needs a free core. Where the machine has none, tests add
// this lateness to their limit. Methods may be called concurrently.
type Lateness struct {
	stop, ended chan struct{}

	mu    sync.Mutex
	due   time.Time // when the thread should wake next
	notes []note    // ordered by time
}

// note is one late wake-up.
type note struct{ due, woken time.Time }

// StartLateness starts the thread. The caller must call Close.
func StartLateness() *Lateness {
	l := &Lateness{stop: make(chan struct{}), ended: make(chan struct{}), due: time.Now().Add(tick)}
	go l.run()
	return l
}

func (l *Lateness) run() {
	defer close(l.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sleep := unix.NsecToTimespec(int64(tick))
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		_ = unix.Nanosleep(&sleep, nil) // a signal may end it early, which is not late
		now := time.Now()
		l.mu.Lock()
		if now.Sub(l.due) > tick {
			l.notes = append(l.notes, note{l.due, now})
		}
		const most = 10_000
		if len(l.notes) > most {
			l.notes = append(l.notes[:0], l.notes[most/2:]...)
		}
		l.due = now.Add(tick)
		l.mu.Unlock()
	}
}

// Worst returns the largest lateness of the thread between two times.
func (l *Lateness) Worst(from, to time.Time) (worst time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range append([]note{{l.due, time.Now()}}, l.notes...) { // the thread may be late right now
		if n.due.Before(to) && n.woken.After(from) {
			worst = max(worst, n.woken.Sub(n.due))
		}
	}
	return worst
}

// Close ends the thread.
func (l *Lateness) Close() {
	close(l.stop)
	<-l.ended
}

// Within fails the test where something took longer than the limit plus five times the
// lateness of this machine meanwhile: five threads may have had to wake.
func (n *Node) Within(t T, limit time.Duration, from, end time.Time, what string) {
	t.Helper()
	machine := 5 * n.Late(from, end)
	if took := end.Sub(from); took > limit+machine {
		t.Fatalf("%s after %v, want at most %v and %v that the machine was late", what, took, limit, machine)
	}
}
