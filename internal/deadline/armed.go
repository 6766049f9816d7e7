package deadline

// #include "thread.h"
import "C"

import (
	"runtime/cgo"
	"sync"
	"syscall"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// Sent is what came of a signal.
type Sent struct {
	At  grace.Mono
	Err error // process.ErrGone if the process had ended
}

// Armed is a SIGTERM that is sent at its time. None of its methods waits for
// anything but another of them.
type Armed struct {
	thread *Thread
	report chan Sent

	mu       sync.Mutex // not the thread's
	c        *C.struct_armed
	disarmed bool // once c is nil
}

// Arm has SIGTERM sent to a process at a time, or at once where that has
// passed. The caller may close the process.
func (t *Thread) Arm(p *process.Process, at grace.Mono) (*Armed, error) {
	pidfd, err := p.Duplicate()
	if err != nil {
		return nil, err
	}
	a := &Armed{thread: t, report: make(chan Sent, 1)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.c = C.deadline_arm(t.c, C.int(pidfd), C.uint64_t(p.PID()), C.uint64_t(p.StartTime()), C.int64_t(at), C.uintptr_t(cgo.NewHandle(a)))
	return a, nil
}

// Move has it sent at another time. Once it is sent that does nothing.
func (a *Armed) Move(to grace.Mono) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c != nil {
		C.deadline_move(a.thread.c, a.c, C.int64_t(to))
	}
}

// Disarm returns false where the signal is sent or being sent: Sent tells, at
// once.
func (a *Armed) Disarm() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c != nil {
		return C.deadline_disarm(a.thread.c, a.c) != 0
	}
	return a.disarmed
}

// Sent gives one value, once the signal was tried.
func (a *Armed) Sent() <-chan Sent { return a.report }

// end takes what came of it. The thread's part is freed.
func (a *Armed) end(r C.struct_result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.c, a.disarmed = nil, r.sent == 0
	if a.disarmed {
		return
	}
	s := Sent{At: grace.Mono(r.at)}
	switch errno := syscall.Errno(r.err); errno {
	case 0:
	case syscall.ESRCH:
		s.Err = process.ErrGone
	default:
		s.Err = errno
	}
	a.report <- s
}
