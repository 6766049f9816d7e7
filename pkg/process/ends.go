package process

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Ends waits for the ends of many processes with one goroutine. One goroutine for each
// would use a tenth of the memory of an agent with 200 VMs. Any goroutine may call its
// methods, and none of them waits for a process.
type Ends struct {
	epoll *os.File // Go's poller waits for it, so no thread does
	run   sync.WaitGroup

	mu sync.Mutex // also held from a wait until its results are handled
	of map[int32]*Watched
}

// WaitForEnds starts the goroutine, which Close ends.
func WaitForEnds() (*Ends, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), unix.Close(fd))
	}
	e := &Ends{epoll: os.NewFile(uintptr(fd), "epoll"), of: map[int32]*Watched{}}
	if err := e.epoll.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: Go's poller does not wait for it: %w", err), e.epoll.Close())
	}
	e.run.Go(e.wait)
	return e, nil
}

// Open is the package's Open, but Done of its result costs no goroutine.
func (e *Ends) Open(pid int, start uint64) (*Process, error) {
	p, err := Open(pid, start)
	if err != nil {
		return nil, err
	}
	if err := e.add(p.Watched); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Watch is the package's Watch, but Done of its result costs no goroutine.
func (e *Ends) Watch(pid int) (*Watched, error) {
	w, err := Watch(pid)
	if err != nil {
		return nil, err
	}
	if err := e.add(w); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close ends the wait. Opened processes stay open, but their ends are not seen any more.
func (e *Ends) Close() error {
	err := e.epoll.Close()
	e.run.Wait()
	if err != nil {
		return fmt.Errorf("close epoll: %w", err)
	}
	return nil
}

func (e *Ends) add(w *Watched) error {
	err := e.control(w, unix.EPOLL_CTL_ADD, func(fd int32) { e.of[fd] = w })
	if err != nil {
		return fmt.Errorf("wait for the end of pid %d: %w", w.pid, err)
	}
	w.ends = e
	return nil
}

// remove comes before the pidfd is closed: a duplicate would keep it on the list.
func (e *Ends) remove(w *Watched) {
	_ = e.control(w, unix.EPOLL_CTL_DEL, func(fd int32) { delete(e.of, fd) }) // it fails if Ends was closed
}

func (e *Ends) control(w *Watched, op int, done func(fd int32)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return within(e.epoll, func(epoll int) error {
		return within(w.file, func(fd int) error {
			err := unix.EpollCtl(epoll, op, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)})
			if err == nil {
				done(int32(fd))
			}
			return err
		})
	})
}

// wait takes ends until Close.
func (e *Ends) wait() {
	raw, err := e.epoll.SyscallConn()
	if err == nil {
		_ = raw.Read(func(fd uintptr) bool { e.take(int(fd)); return false })
	}
}

// take reports all processes that have ended: the poller tells only once.
func (e *Ends) take(epoll int) {
	var events [64]unix.EpollEvent
	for {
		e.mu.Lock()
		n, err := unix.EpollWait(epoll, events[:], 0)
		for i := range max(n, 0) {
			if w := e.of[events[i].Fd]; w != nil {
				delete(e.of, events[i].Fd)
				close(w.done)
			}
		}
		e.mu.Unlock()
		if n <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
