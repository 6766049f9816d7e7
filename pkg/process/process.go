// Package process identifies a process so that it cannot be mistaken for another: by a
// pidfd that was opened when it was first seen, and checked against its start time. A pid
// alone may be another process's a moment later.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sentinel errors. Any other error says nothing about the process.
var (
	// ErrGone means that the process has ended, or that the pid belongs to another one.
	ErrGone = errors.New("the process is gone")
	// ErrNoStart means that the start time is unknown: another process with the same pid
	// could not be told from this one.
	ErrNoStart = errors.New("the start time of the process is not known")
)

// Start returns when a process started, in clock ticks since boot: field 22 of
// /proc/pid/stat (proc(5)). The error is ErrGone if there is no such process.
func Start(pid int) (uint64, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return 0, fmt.Errorf("start time of pid %d: %w", pid, err)
	}
	return parse(stat)
}

// parse takes the start time from the text of a stat file.
func parse(stat []byte) (start uint64, err error) {
	if start, err = number(stat, 22); err != nil {
		return 0, fmt.Errorf("start time: %w", err)
	}
	return start, nil
}

// number takes a field of a stat file, which are counted from 1. It skips the
// command's name (2), which may hold spaces and brackets.
func number(stat []byte, field int) (uint64, error) {
	const first = 3 // the state
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= field-first {
		return 0, fmt.Errorf("field %d of %.80q: too few fields", field, stat)
	}
	n, err := strconv.ParseUint(string(fields[field-first]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("field %d of %.80q: %w", field, stat, err)
	}
	return n, nil
}

// Age returns how long ago a process with this start time started, including the time
// that the host was suspended.
func Age(start uint64) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every kernel with pidfds has it
	return time.Duration(now.Nano()) - time.Duration(start)*tick
}

// Check returns the error of Open for a process that nobody needs to hold: nil if the
// process that started at start runs.
func Check(pid int, start uint64) error {
	p, err := Open(pid, start)
	if err != nil {
		return err
	}
	return p.Close()
}

// Watched is one process whose end can be seen, until Close. It cannot be signalled,
// because its pid alone may mean another process. Any goroutine may call its methods.
type Watched struct {
	pid   int
	start uint64
	file  *os.File
	done  chan struct{}
	ends  *Ends     // closes done, or
	once  sync.Once // starts watch
	watch sync.WaitGroup
}

// Process is one process that is identified by pid and start time, and so may be
// signalled.
type Process struct{ *Watched }

// Open opens the process with this pid and start time (see Start). The error
// is ErrNoStart if start is 0, and ErrGone if the process has ended, as a
// zombie too, or if the pid belongs to one that started at another time.
func Open(pid int, start uint64) (*Process, error) {
	if start == 0 {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoStart)
	}
	// An open pidfd stays with its process, so the process that has the pid after that is
	// the opened one.
	w, err := Watch(pid)
	if err != nil {
		// The pid may be a thread's by now (EINVAL); the kernel may be too old.
		if now, startErr := Start(pid); errors.Is(startErr, ErrGone) || startErr == nil && now != start {
			return nil, fmt.Errorf("pid %d: %w", pid, ErrGone)
		}
		return nil, err
	}
	switch w.start {
	case start:
		return &Process{w}, nil
	case 0:
		return nil, errors.Join(fmt.Errorf("pid %d: %w", pid, ErrNoStart), w.Close())
	default:
		return nil, errors.Join(fmt.Errorf("pid %d started at %d, not %d: %w", pid, w.start, start, ErrGone), w.Close())
	}
}

// Watch opens whichever process has the pid now. The error is ErrGone if there is none,
// or only a zombie.
func Watch(pid int) (*Watched, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	// Non-blocking, so that the runtime's poller waits, not a thread. (Linux
	// before 5.10 has no PIDFD_NONBLOCK.)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("pidfd of %d: %w", pid, err), unix.Close(fd))
	}
	w := &Watched{pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	w.start, _ = Start(pid) // 0 where /proc hides it
	if w.Gone() {
		return nil, errors.Join(fmt.Errorf("pid %d: %w", pid, ErrGone), w.Close())
	}
	return w, nil
}

// wait closes done when the process has ended. Close ends it too, with an error.
func (p *Watched) wait() {
	raw, err := p.file.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool { return ready(int(fd)) })
	}
	if err == nil {
		close(p.done)
	}
}

// ready reports whether the process has ended (pidfd_open(2): readable then).
func ready(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// within calls f with a file's descriptor, which stays open meanwhile.
func within(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// PID is the process's pid, as long as it lives.
func (p *Watched) PID() int { return p.pid }

// StartTime returns its start time, as Start does. It is never 0 for a Process. It is 0
// for a process that is only watched if /proc hides it.
func (p *Watched) StartTime() uint64 { return p.start }

// Done is closed when the process has ended. It stays open after Close. Only a caller of
// Done pays for the goroutine that waits.
func (p *Watched) Done() <-chan struct{} {
	if p.ends == nil {
		p.once.Do(func() { p.watch.Go(p.wait) })
	}
	return p.done
}

// Gone reports whether the process has ended.
func (p *Watched) Gone() bool {
	select {
	case <-p.done:
		return true
	default:
	}
	gone := false
	err := within(p.file, func(fd int) error { gone = ready(fd); return nil })
	return err == nil && gone
}

// Signal sends a signal to this process and no other (pidfd_send_signal(2)).
// The error is ErrGone if it has ended.
func (p *Process) Signal(s unix.Signal) error {
	if p.Gone() { // a zombie would take the signal without an error
		return fmt.Errorf("pid %d: %w", p.pid, ErrGone)
	}
	err := within(p.file, func(fd int) error { return unix.PidfdSendSignal(fd, s, nil, 0) })
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("pid %d: %w", p.pid, ErrGone)
	case err != nil:
		return fmt.Errorf("signal %s to pid %d: %w", unix.SignalName(s), p.pid, err)
	default:
		return nil
	}
}

// Duplicate returns a pidfd of the process; the caller closes it (pidfd_open(2)).
func (p *Process) Duplicate() (pidfd int, err error) {
	err = within(p.file, func(fd int) (err error) {
		pidfd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("duplicate the pidfd of %d: %w", p.pid, err)
	}
	return pidfd, nil
}

// Close releases the process, which goes on.
func (p *Watched) Close() error {
	if p.ends != nil {
		p.ends.remove(p)
	}
	err := p.file.Close()
	p.watch.Wait()
	if err != nil {
		return fmt.Errorf("close pidfd of %d: %w", p.pid, err)
	}
	return nil
}
