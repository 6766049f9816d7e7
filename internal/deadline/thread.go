// Package deadline sends SIGTERM to processes at their deadlines, from one
// thread that does nothing else.
//
// The thread sleeps on a timer (timerfd_create(2)). It takes one lock, which is
// never held over anything that waits, and sends by raw system calls. It writes
// no line, touches no disk and waits for no other VM. Where the kernel allows it,
// the thread is a real-time one (SCHED_RR, sched(7)), so that a node without a
// free core does not make it late. It runs for microseconds per deadline.
package deadline

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// ErrClosed is the error of Arm after Close.
var ErrClosed = errors.New("the deadline thread has ended")

// Thread sends the signals. Its methods may be called from any goroutine.
type Thread struct {
	timer int // timerfd
	ended chan struct{}

	mu      sync.Mutex // never held over anything that waits
	armed   map[*Armed]bool
	next    grace.Mono // what the timer is set to
	closing bool
}

// Start starts the thread. Where the kernel refuses real-time priority, that is
// logged and the thread works without.
func Start(log *slog.Logger) (*Thread, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("the deadline thread: timerfd_create: %w", err)
	}
	t := &Thread{timer: fd, ended: make(chan struct{}), armed: map[*Armed]bool{}, next: grace.Never}
	refused := make(chan error)
	go onOwnThread(func() {
		defer close(t.ended)
		refused <- becomeRealTime()
		for t.fire() {
			t.sleep()
		}
	})
	if err := <-refused; err != nil {
		log.Warn("the deadline thread has no real-time priority: on a node without a free core signals may be late; a larger CPU request helps", "err", err)
	}
	return t, nil
}

// Close ends the thread. What is still armed is not sent.
func (t *Thread) Close() error {
	t.mu.Lock()
	first := !t.closing
	t.closing = true
	if first {
		for a := range t.armed {
			a.disarmed = true
			t.drop(a)
		}
		t.set(0)
	}
	t.mu.Unlock()
	<-t.ended
	if !first {
		return nil
	}
	if err := unix.Close(t.timer); err != nil {
		return fmt.Errorf("the deadline thread: close the timer: %w", err)
	}
	return nil
}

// onOwnThread runs f on a thread that ends with it. It is not the main thread,
// whose name is the program's and which Go does not end.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	ended := make(chan struct{})
	go func() { defer close(ended); onOwnThread(f) }()
	<-ended
	runtime.UnlockOSThread()
}

// becomeRealTime changes the calling thread. What Go makes from it does not
// inherit that (sched(7)).
func becomeRealTime() error {
	name := [...]byte{'d', 'e', 'a', 'd', 'l', 'i', 'n', 'e', 0}              // for people
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name)), 0, 0, 0) //nolint:gosec // as prctl(2) takes it
	return unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
}

// lead is how long before a deadline the timer wakes the thread. Go's scheduler may keep it
// waiting for a processor while many goroutines have work, as they do at a deadline that many
// VMs share. The rest of the time it sleeps with the processor in its hands.
const lead = 10 * time.Millisecond

// sleep waits for the next deadline. Until lead before it Go's scheduler needs nothing of
// this thread.
func (t *Thread) sleep() {
	var expirations [8]byte
	_, _ = unix.Read(t.timer, expirations[:]) // EINTR: fire looks what is due
	t.mu.Lock()
	next := t.next
	t.mu.Unlock()
	if now().Add(lead) >= next {
		at := unix.NsecToTimespec(max(int64(next), 1))
		_, _, _ = unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&at)), 0, 0, 0) //nolint:gosec // EINTR, as above
	}
}

// fire sends what is due, until Close. It allocates nothing: that could wait for the
// garbage collector. It wakes nobody before the last signal is sent.
func (t *Thread) fire() (open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, next := now(), grace.Never
	for a := range t.armed {
		if a.at <= now {
			a.sent = terminate(a.pidfd)
		} else {
			next = min(next, a.at)
		}
	}
	for a := range t.armed {
		if a.sent != (Sent{}) {
			t.drop(a)
			a.report <- a.sent // there is room
		}
	}
	t.set(next)
	return !t.closing
}

// set sets the timer. The caller holds the lock: no call here may give the processor away.
func (t *Thread) set(at grace.Mono) {
	t.next = at
	var spec unix.ItimerSpec // none
	if at != grace.Never {
		spec.Value = unix.NsecToTimespec(max(int64(at.Add(-lead)), 1))
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(t.timer), unix.TFD_TIMER_ABSTIME, uintptr(unsafe.Pointer(&spec)), 0, 0, 0) //nolint:gosec // it cannot fail with these arguments
}

// drop takes a signal off the list that it is on. The caller holds the lock.
func (t *Thread) drop(a *Armed) {
	delete(t.armed, a)
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(a.pidfd), 0, 0) // nothing was written to it
}
