package deadline

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// Sent is what came of a signal.
type Sent struct {
	At  grace.Mono
	Err error // process.ErrGone if the process had ended
}

// Armed is a SIGTERM that is sent at its time. None of its methods blocks.
type Armed struct {
	thread *Thread
	pidfd  [1]unix.PollFd
	at     atomic.Int64 // grace.Mono
	state  atomic.Int32
	result Sent // set before it is passed on
	report chan Sent
	next   *Armed
}

const (
	waiting = iota
	disarmed
	sent
)

// Arm has SIGTERM sent to a process at a time, or at once where that has
// passed. The thread closes the pidfd.
func (t *Thread) Arm(pidfd int, at grace.Mono) *Armed {
	a := &Armed{thread: t, pidfd: [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, report: make(chan Sent, 1)}
	a.at.Store(int64(at))
	t.incoming.put(a)
	ring(t.wake)
	return a
}

// Move has it sent at another time. Once it is sent that does nothing.
func (a *Armed) Move(to grace.Mono) {
	if a.at.Swap(int64(to)) != int64(to) {
		ring(a.thread.wake)
	}
}

// Disarm returns false where the signal is sent or being sent: Sent tells, at
// once.
func (a *Armed) Disarm() bool {
	if !a.state.CompareAndSwap(waiting, disarmed) {
		return a.state.Load() == disarmed
	}
	ring(a.thread.wake)
	return true
}

// Sent gives one value, once the signal was tried.
func (a *Armed) Sent() <-chan Sent { return a.report }

// send is called by the thread.
func (a *Armed) send() {
	if !a.state.CompareAndSwap(waiting, sent) {
		return
	}
	a.result.Err = a.terminate()
	a.result.At = now()
}

// terminate looks first (pidfd_open(2)): a zombie takes a signal without an error.
func (a *Armed) terminate() error {
	if n, err := unix.Poll(a.pidfd[:], 0); err == nil && n > 0 {
		return process.ErrGone
	}
	err := unix.PidfdSendSignal(int(a.pidfd[0].Fd), unix.SIGTERM, nil, 0)
	if err == unix.ESRCH {
		return process.ErrGone
	}
	return err
}

// list is a list that many put on and one takes from, without a lock.
type list struct{ first atomic.Pointer[Armed] }

// put adds all of a chain.
func (l *list) put(chain *Armed) {
	if chain == nil {
		return
	}
	last := chain
	for last.next != nil {
		last = last.next
	}
	for {
		last.next = l.first.Load()
		if l.first.CompareAndSwap(last.next, chain) {
			return
		}
	}
}

func (l *list) take() *Armed { return l.first.Swap(nil) }
