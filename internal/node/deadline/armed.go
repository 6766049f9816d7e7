package deadline

// #include "thread.h"
import "C"

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// Sent is the result of a signal.
type Sent struct {
	At  grace.Mono
	Err error // process.ErrGone if the process had ended
}

// Armed is a SIGTERM that is sent at its time. Its methods wait only for each other.
type Armed struct {
	thread *Thread
	pidfd  int
	report chan Sent

	// Under the thread's lock:
	slot     C.int // of the table, while the thread has it among the armed
	disarmed bool
}

// Arm makes the thread send SIGTERM to a process at a time, or at once if that has
// passed. The caller may close the process.
func (t *Thread) Arm(p *process.Process, at grace.Mono) (*Armed, error) {
	pidfd, err := p.Duplicate()
	if err != nil {
		return nil, err
	}
	a := &Armed{thread: t, pidfd: pidfd, report: make(chan Sent, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err = ErrClosed; !t.closed {
		err = ErrFull
		a.slot = C.deadline_arm(C.int(pidfd), C.int64_t(at))
	}
	if t.closed || a.slot < 0 {
		_ = unix.Close(pidfd) // nothing was written to it
		return nil, err
	}
	t.armed[a] = true
	return a, nil
}

// Move changes the time of the signal. It does nothing once the signal is sent or
// disarmed.
func (a *Armed) Move(to grace.Mono) {
	a.thread.mu.Lock()
	defer a.thread.mu.Unlock()
	if a.thread.armed[a] {
		C.deadline_move(a.slot, C.int64_t(to))
	}
}

// Disarm returns false if the signal is sent: Sent has the result at once.
func (a *Armed) Disarm() bool {
	a.thread.mu.Lock()
	defer a.thread.mu.Unlock()
	if a.thread.armed[a] {
		a.settle()
	}
	return a.disarmed
}

// Sent gives one value, once the signal was tried.
func (a *Armed) Sent() <-chan Sent { return a.report }

// settle disarms the signal, or reports its result. The caller holds the thread's lock.
func (a *Armed) settle() {
	if C.deadline_disarm(a.slot) == 0 {
		a.take()
		return
	}
	a.disarmed = true
	a.forget()
}

// take reports the result if the signal was sent. The caller holds the thread's lock.
func (a *Armed) take() {
	var sent C.struct_deadline_sent
	if C.deadline_take(a.slot, &sent) == 0 {
		return
	}
	s := Sent{At: grace.Mono(sent.at)}
	switch errno := syscall.Errno(sent.error); errno {
	case 0:
	case unix.ESRCH:
		s.Err = process.ErrGone
	default:
		s.Err = errno
	}
	a.forget()
	a.report <- s // there is room
}

// forget releases the slot, which is free. The caller holds the thread's lock.
func (a *Armed) forget() {
	delete(a.thread.armed, a)
	_ = unix.Close(a.pidfd) // nothing was written to it
}
