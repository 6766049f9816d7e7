// Package process knows a process in a way that cannot be mistaken for
// another: by a pidfd that was opened when it was first seen, checked against
// its start time. A pid alone may name a stranger a moment later.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrGone says that the process has ended, or that the pid belongs to another
// one now.
var ErrGone = errors.New("the process is gone")

// Start returns when a process started, in clock ticks since boot: field 22 of
// /proc/pid/stat (proc(5)). The error is ErrGone if there is no such process.
func Start(pid int) (uint64, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	stat, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return 0, fmt.Errorf("start time of pid %d: %w", pid, err)
	}
	return parseStart(stat)
}

// parseStart skips the command's name, which may hold spaces and brackets.
func parseStart(stat []byte) (uint64, error) {
	const after = 22 - 3 // fields between the state (3) and the start time
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= after {
		return 0, fmt.Errorf("start time in %.80q: too few fields", stat)
	}
	start, err := strconv.ParseUint(string(fields[after]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start time in %.80q: %w", stat, err)
	}
	return start, nil
}

// Process is one process, until Close. Its methods may be called from any
// goroutine.
type Process struct {
	pid   int
	start uint64
	file  *os.File
	done  chan struct{}
	watch sync.WaitGroup
}

// Open opens a process. A start of 0 takes whichever has the pid now. The
// error is ErrGone if the process has ended, as a zombie too, or if the pid
// belongs to one that started at another time.
func Open(pid int, start uint64) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		// EINVAL: the pid is a thread's by now, so not the process that was meant.
		return nil, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	p := &Process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	// Compared after opening: from here on the pidfd cannot change hands.
	if p.start, err = Start(pid); err == nil && start != 0 && p.start != start {
		err = fmt.Errorf("pid %d started at %d, not %d: %w", pid, p.start, start, ErrGone)
	}
	if err == nil && ready(fd) {
		err = fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch pid %d: %w", pid, err), p.file.Close())
	}
	p.watch.Go(func() {
		// The runtime's poller waits: no thread is held for it. Close ends it.
		if raw.Read(func(fd uintptr) bool { return ready(int(fd)) }) == nil {
			close(p.done)
		}
	})
	return p, nil
}

// ready tells whether the process has ended (pidfd_open(2): readable then).
func ready(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// PID is the process's pid, as long as it lives.
func (p *Process) PID() int { return p.pid }

// StartTime is what Start says of it.
func (p *Process) StartTime() uint64 { return p.start }

// Done is closed when the process has ended. It stays open after Close.
func (p *Process) Done() <-chan struct{} { return p.done }

// Gone tells whether the process has ended.
func (p *Process) Gone() bool {
	select {
	case <-p.done:
		return true
	default:
	}
	gone := false
	raw, err := p.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { gone = ready(int(fd)) })
	}
	return err == nil && gone
}

// Signal sends a signal to this process and no other (pidfd_send_signal(2)).
// The error is ErrGone if it has ended.
func (p *Process) Signal(s unix.Signal) error {
	if p.Gone() { // a zombie would take the signal without an error
		return fmt.Errorf("pid %d: %w", p.pid, ErrGone)
	}
	raw, err := p.file.SyscallConn()
	if err == nil {
		var sent error
		if err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err == nil {
			err = sent
		}
	}
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("pid %d: %w", p.pid, ErrGone)
	case err != nil:
		return fmt.Errorf("signal %s to pid %d: %w", unix.SignalName(s), p.pid, err)
	default:
		return nil
	}
}

// Close lets go of the process, which goes on.
func (p *Process) Close() error {
	err := p.file.Close()
	p.watch.Wait()
	if err != nil {
		return fmt.Errorf("close pidfd of %d: %w", p.pid, err)
	}
	return nil
}
