// Package deadline sends SIGTERM to processes at their deadlines, from one OS
// thread that does nothing else.
//
// From Arm to the signal that thread takes no lock, writes no line, touches no
// disk and waits for nobody: it sleeps on a timer (timerfd_create(2)) and an
// eventfd. Callers hand over through a lock-free list, and another goroutine
// passes on what came of it. Where the kernel allows it, the thread is a
// real-time one (SCHED_RR, sched(7)), so that a node without a free core does
// not make it late. It runs for microseconds per deadline.
package deadline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Name is the thread's name in /proc/PID/task/TID/comm (proc(5)).
const Name = "deadline"

// Thread sends the signals. Its methods may be called from any goroutine.
type Thread struct {
	timer   int      // timerfd, of the earliest deadline
	wake    int      // eventfd: something has changed
	report  int      // eventfd: there is something in over
	reports *os.File // the same, for the runtime's poller
	closing atomic.Bool
	ended   atomic.Bool

	incoming list // armed, not known to the thread yet
	over     list // sent or disarmed, to be passed on
	running  sync.WaitGroup
}

// Start starts the thread. Where the kernel refuses it real-time priority, that
// is logged and the thread works without.
func Start(log *slog.Logger) (*Thread, error) {
	fds, err := open()
	if err != nil {
		return nil, fmt.Errorf("the deadline thread: %w", err)
	}
	t := &Thread{timer: fds[0], wake: fds[1], report: fds[2], reports: os.NewFile(uintptr(fds[2]), "eventfd")}
	started := make(chan error, 1)
	t.running.Go(func() { t.alone(started) })
	t.running.Go(t.passOn)
	if err := <-started; err != nil {
		log.Warn("the deadline thread has no real-time priority: on a node without a free core signals may be late; a larger CPU request helps", "err", err)
	}
	return t, nil
}

func open() (fds [3]int, err error) {
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	wake, err2 := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	report, err3 := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	fds = [3]int{timer, wake, report}
	if err = errors.Join(err, err2, err3); err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd) // -1 where there is none
		}
	}
	return fds, err
}

// alone runs the thread, which ends with this function. It must not be the main
// thread, which cannot end and whose name is the process's.
func (t *Thread) alone(started chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		var other sync.WaitGroup
		other.Go(func() { t.alone(started) })
		other.Wait()
		return
	}
	started <- prioritize()
	t.run()
}

// prioritize makes the calling thread a real-time one, and none that it makes.
func prioritize() error {
	_ = os.WriteFile("/proc/thread-self/comm", []byte(Name), 0) // for people
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	if err := unix.SchedSetAttr(0, attr, 0); err != nil {
		return fmt.Errorf("sched_setattr: %w", err)
	}
	return nil
}

// Close ends the thread. What is still armed is not sent. Nothing may be armed,
// moved or disarmed afterwards.
func (t *Thread) Close() error {
	t.closing.Store(true)
	ring(t.wake)
	t.running.Wait()
	return errors.Join(t.reports.Close(), unix.Close(t.wake), unix.Close(t.timer))
}

// run is the thread. All memory that it uses is there before it is needed: an
// allocation could make it work for the garbage collector.
func (t *Thread) run() {
	fds := []unix.PollFd{{Fd: int32(t.wake), Events: unix.POLLIN}, {Fd: int32(t.timer), Events: unix.POLLIN}}
	count := make([]byte, 8)
	var timer unix.ItimerSpec
	var armed *Armed
	for !t.closing.Load() {
		_, _ = unix.Read(t.wake, count) // EAGAIN: it was the timer
		for a := t.incoming.take(); a != nil; {
			next := a.next
			a.next, armed = armed, a
			a = next
		}
		var next grace.Mono
		armed, next = t.fire(armed)
		timer.Value = unix.Timespec{} // none
		if next != grace.Never {
			timer.Value = unix.NsecToTimespec(int64(next))
		}
		_ = unix.TimerfdSettime(t.timer, unix.TFD_TIMER_ABSTIME, &timer, nil) // cannot fail with these arguments
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(time.Millisecond)}, nil) // ENOMEM; a real-time thread must not spin
		}
	}
	t.over.put(t.incoming.take())
	t.over.put(armed)
	t.ended.Store(true)
	ring(t.report)
}

// fire sends what is due, and then has it passed on. It returns what is left
// and when the next of that is due.
func (t *Thread) fire(armed *Armed) (left *Armed, next grace.Mono) {
	var over *Armed
	next = grace.Never
	for now := now(); armed != nil; {
		a, at := armed, grace.Mono(armed.at.Load())
		armed = a.next
		if a.state.Load() == waiting && at > now {
			a.next, left, next = left, a, min(next, at)
			continue
		}
		a.send()
		a.next, over = over, a
	}
	if over != nil {
		t.over.put(over)
		ring(t.report)
	}
	return left, next
}

// passOn tells the owners what came of their signals.
func (t *Thread) passOn() {
	count := make([]byte, 8)
	for ended := false; !ended; {
		_, err := t.reports.Read(count)
		ended = err != nil || t.ended.Load()
		for a := t.over.take(); a != nil; a = a.next {
			_ = unix.Close(int(a.pidfd[0].Fd))
			if a.state.Load() == sent {
				a.report <- a.result
			}
		}
	}
}

// now is CLOCK_MONOTONIC, which always can be read.
func now() grace.Mono {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return grace.Mono(t.Nano())
}

// ring never blocks: an eventfd takes 2^64-2 rings before somebody reads.
func ring(eventfd int) {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(eventfd, one[:])
}
