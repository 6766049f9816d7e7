// Package deadline sends SIGTERM to processes at their deadlines, from one
// thread that does nothing else.
//
// The thread is C's, and does not need Go's scheduler: a thread of Go's had to wait for a
// processor when 30 VMs had one deadline, and was 60 ms late. The C thread sleeps on a
// timer (timerfd_create(2)). It takes one lock that is never held during a wait, writes
// no line, touches no disk and waits for no VM. If the kernel allows it, it is a
// real-time thread (SCHED_RR, else SCHED_DEADLINE, sched(7)), so that a node without a free core does not
// delay it. Whoever holds the lock meanwhile inherits its priority.
//
// Go and C share a static table of slots, and small numbers. Only Go assigns slots and
// knows when one is free.
package deadline

// #include "thread.h"
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClosed is the error of Arm after Close.
var ErrClosed = errors.New("the deadline thread has ended")

// ErrFull is the error of Arm if too many are armed.
var ErrFull = errors.New("the deadline thread has no room for another deadline")

// Thread sends the signals. Its methods may be called from any goroutine.
type Thread struct {
	reports *os.File // eventfd: signals were sent
	passing sync.WaitGroup

	mu     sync.Mutex
	armed  map[*Armed]bool // those that have a slot
	closed bool
}

// Start starts the thread; a process has one at a time. If the kernel refuses real-time
// priority, Start logs that, and the thread works without.
func Start(log *slog.Logger) (*Thread, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("the deadline thread: eventfd: %w", err)
	}
	t := &Thread{reports: os.NewFile(uintptr(fd), "eventfd"), armed: map[*Armed]bool{}}
	var refused C.int
	if errno := C.deadline_start(C.int(fd), &refused); errno != 0 {
		return nil, errors.Join(fmt.Errorf("the deadline thread: %w", syscall.Errno(errno)), t.reports.Close())
	}
	if refused != 0 {
		log.Warn("the deadline thread has no real-time priority: on a node without a free core signals may be late; a larger CPU request helps", "err", syscall.Errno(refused))
	}
	t.passing.Go(t.passOn)
	return t, nil
}

// Close ends the thread. Signals that are still armed are not sent.
func (t *Thread) Close() error {
	t.mu.Lock()
	first := !t.closed
	if t.closed = true; first {
		C.deadline_end()
		for a := range t.armed {
			a.settle()
		}
		C.deadline_free()
	}
	t.mu.Unlock()
	if !first {
		return nil
	}
	err := t.reports.SetReadDeadline(time.Unix(1, 0))
	t.passing.Wait()
	return errors.Join(err, t.reports.Close())
}

// passOn reports the results of the signals, until Close.
func (t *Thread) passOn() {
	count := make([]byte, 8)
	for {
		if _, err := t.reports.Read(count); err != nil {
			return
		}
		t.mu.Lock()
		for a := range t.armed {
			a.take()
		}
		t.mu.Unlock()
	}
}
