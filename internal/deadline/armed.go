package deadline

import (
	"unsafe"

	"golang.org/x/sys/unix"

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
	pidfd  int
	report chan Sent

	// Under the thread's lock:
	at       grace.Mono
	sent     Sent // zero: not tried yet
	disarmed bool
}

// Arm has SIGTERM sent to a process at a time, or at once where that has
// passed. The caller may close the process.
func (t *Thread) Arm(p *process.Process, at grace.Mono) (*Armed, error) {
	pidfd, err := p.Duplicate()
	if err != nil {
		return nil, err
	}
	a := &Armed{thread: t, pidfd: pidfd, report: make(chan Sent, 1), at: at}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		_ = unix.Close(pidfd) // nothing was written to it
		return nil, ErrClosed
	}
	t.armed[a] = true
	if at < t.next {
		t.set(at)
	}
	return a, nil
}

// Move has it sent at another time. Once it is sent or disarmed that does nothing.
func (a *Armed) Move(to grace.Mono) {
	t := a.thread
	t.mu.Lock()
	defer t.mu.Unlock()
	a.at = to
	if t.armed[a] && to < t.next {
		t.set(to)
	}
}

// Disarm returns false where the signal is sent: Sent tells, at once.
func (a *Armed) Disarm() bool {
	a.thread.mu.Lock()
	defer a.thread.mu.Unlock()
	if a.thread.armed[a] {
		a.disarmed = true
		a.thread.drop(a)
	}
	return a.disarmed
}

// Sent gives one value, once the signal was tried.
func (a *Armed) Sent() <-chan Sent { return a.report }

// terminate uses raw system calls: around others Go's scheduler may give this
// thread's processor to another one. It looks first, because a zombie takes a
// signal without an error (pidfd_open(2)).
func terminate(pidfd int) Sent {
	gone := unix.PollFd{Fd: int32(pidfd), Events: unix.POLLIN}
	var none unix.Timespec
	n, _, _ := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&gone)), 1, uintptr(unsafe.Pointer(&none)), 0, 0, 0) //nolint:gosec // a raw system call
	if int(n) == 1 {
		return Sent{now(), process.ErrGone}
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(pidfd), uintptr(unix.SIGTERM), 0, 0, 0, 0)
	s := Sent{At: now()}
	switch errno {
	case 0:
	case unix.ESRCH:
		s.Err = process.ErrGone
	default:
		s.Err = errno
	}
	return s
}

func now() grace.Mono {
	var t unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&t)), 0) //nolint:gosec // a raw system call, which every kernel has
	return grace.Mono(t.Nano())
}
