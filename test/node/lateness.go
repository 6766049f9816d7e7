package node

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tick is how long the thread of a Lateness sleeps.
const tick = time.Millisecond

// Lateness is a plain thread that sleeps for a millisecond again and again and
// notes how late it is woken. A promise in milliseconds presumes a free core:
// where there is none, this is what it is measured by. Methods may be called at once.
type Lateness struct {
	stop, ended chan struct{}

	mu    sync.Mutex
	due   time.Time // when the thread is to be woken next
	notes []note    // in the order of time
}

// note is one wake-up that was late.
type note struct{ due, woken time.Time }

// StartLateness starts the thread. The caller closes it.
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
		_ = unix.Nanosleep(&sleep, nil) // a signal ends it early: not late
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

// Worst is how late the thread was at worst, between two times.
func (l *Lateness) Worst(from, to time.Time) (worst time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range append([]note{{l.due, time.Now()}}, l.notes...) { // it may be late just now
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

// Within fails where what began at a time has taken longer than the limit and what
// this machine was late meanwhile, for each of five that may have had to be woken.
func (n *Node) Within(t T, limit time.Duration, from, end time.Time, what string) {
	t.Helper()
	machine := 5 * n.Late(from, end)
	if took := end.Sub(from); took > limit+machine {
		t.Fatalf("%s after %v, want at most %v and %v that the machine was late", what, took, limit, machine)
	}
}
