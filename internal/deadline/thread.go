// Package deadline sends SIGTERM to processes at their deadlines, from one
// thread that does nothing else.
//
// From Arm to the signal that thread takes no lock, writes no line, touches no
// disk, needs nothing of Go's scheduler and waits for nobody: it sleeps on a
// timer (timerfd_create(2)) and an eventfd. Callers hand over through a
// lock-free list, and a goroutine passes on what came of it. Where the kernel
// allows it, the thread is a real-time one (SCHED_RR, sched(7)), so that a node
// without a free core does not make it late. It runs for microseconds per
// deadline.
package deadline

// #include "thread.h"
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/cgo"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Thread sends the signals. Its methods may be called from any goroutine.
type Thread struct {
	c       *C.struct_thread
	reports *os.File // eventfd: there are results
	journal *journal // nil for none
	passing sync.WaitGroup
}

// Start starts the thread. The journal is a file on a tmpfs, which is made where
// there is none, and in which an agent before this one has noted whom it signals.
// Where there can be no journal, or the kernel refuses real-time priority, that
// is logged and the thread works without.
func Start(log *slog.Logger, journal string) (*Thread, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("the deadline thread: eventfd: %w", err)
	}
	t := &Thread{reports: os.NewFile(uintptr(fd), "eventfd")}
	if t.journal, err = openJournal(journal); err != nil {
		log.Warn("signals are not noted in memory that outlives the agent: if it is killed right after one, the next may call the end of that VM Graceful", "err", err)
	}
	var refused C.int
	if errno := C.deadline_start(&t.c, C.int(fd), t.journal.shared(), &refused); errno != 0 {
		return nil, errors.Join(fmt.Errorf("the deadline thread: %w", syscall.Errno(errno)), t.journal.close(), t.reports.Close())
	}
	if refused != 0 {
		log.Warn("the deadline thread has no real-time priority: on a node without a free core signals may be late; a larger CPU request helps", "err", syscall.Errno(refused))
	}
	t.passing.Go(t.passOn)
	return t, nil
}

// Close ends the thread. What is still armed is not sent. Nothing may be armed,
// moved or disarmed afterwards.
func (t *Thread) Close() error {
	C.deadline_end(t.c) // its last results are rung for
	err := t.reports.SetReadDeadline(time.Unix(1, 0))
	t.passing.Wait()
	C.deadline_free(t.c)
	return errors.Join(err, t.journal.close(), t.reports.Close())
}

// Signalled reports whether the process with this pid and start time was about to
// be signalled by an agent before this one.
func (t *Thread) Signalled(pid int, start uint64) bool {
	return t.journal != nil && t.journal.before[signalled{uint64(pid), start}]
}

// passOn tells the owners what came of their signals, until Close.
func (t *Thread) passOn() {
	count := make([]byte, 8)
	for ended := false; !ended; {
		_, err := t.reports.Read(count)
		ended = err != nil
		var r C.struct_result
		for C.deadline_take(t.c, &r) != 0 {
			handle := cgo.Handle(r.handle)
			if a, ok := handle.Value().(*Armed); ok {
				a.end(r)
			}
			handle.Delete()
		}
	}
}
