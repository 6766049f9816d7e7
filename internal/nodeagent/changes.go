package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// changes tells when a directory may have been removed, replaced or emptied.
// Of what is written there it hears nothing, so that writing costs no more.
type changes struct {
	dir     string
	changed chan struct{}
	inotify *os.File // nil where there is none
	end     context.CancelFunc
	ears    sync.WaitGroup
}

func newChanges(ctx context.Context, dir string, log *slog.Logger) *changes {
	ctx, end := context.WithCancel(ctx)
	c := &changes{dir: dir, changed: make(chan struct{}, 1), end: end}
	c.ears.Go(func() { watch.Mounts(ctx, log, c.tell) })
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("cannot watch the state directory; looking at it instead", "every", cacheSearch, "err", fmt.Errorf("inotify_init1: %w", err))
		return c
	}
	c.inotify = os.NewFile(uintptr(fd), "inotify")
	c.ears.Go(func() {
		// What happened does not matter, only that something did.
		for events := make([]byte, 4096); ; c.tell() {
			if _, err := c.inotify.Read(events); err != nil {
				if !errors.Is(err, os.ErrClosed) {
					log.Error("hears nothing of the state directory any more; looking at it instead", "every", cacheLook, "err", err)
				}
				return
			}
		}
	})
	return c
}

// arm watches what is there now, and tells whether that can be done. What is
// watched already stays so.
func (c *changes) arm() bool {
	if c.inotify == nil {
		return false
	}
	raw, err := c.inotify.SyscallConn()
	if err != nil {
		return false
	}
	failed := raw.Control(func(fd uintptr) {
		_, err = unix.InotifyAddWatch(int(fd), c.dir, unix.IN_DELETE|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR)
	})
	return failed == nil && err == nil
}

// wait waits until something has changed and had time to come to its end, at
// most so long. It is false once ctx has ended.
func (c *changes) wait(ctx context.Context, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-c.changed:
		timer.Reset(cacheSettle)
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *changes) tell() {
	select {
	case c.changed <- struct{}{}:
	default: // it is on its way
	}
}

func (c *changes) close() {
	c.end()
	if c.inotify != nil {
		_ = c.inotify.Close() // it only listened
	}
	c.ears.Wait()
}
