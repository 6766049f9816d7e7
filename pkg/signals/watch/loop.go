package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// scanInterval is how often everything is scanned, because inotify can lose events.
// pollInterval is how often to look for missing directories, and for all of them without
// inotify.
const (
	scanInterval = 10 * time.Second
	pollInterval = 500 * time.Millisecond
	// fullScan is every how many scans all directories are looked at, even unchanged
	// ones: a lock leaves no trace there.
	fullScan = 30
)

// Events of a storm are taken together, each name once, so that one tenant's renames do
// not delay another's trigger. At stormSize waiting events it is a storm. Then the
// watcher waits for the rest.
const (
	eventBuffer = 1024
	stormSize   = 64
	stormDelay  = 2 * time.Millisecond
)

// Run watches until ctx ends, by polling while there is no inotify. Nothing that happens
// to a directory ends it.
func (w *Watcher) Run(ctx context.Context) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mounts := make(chan struct{}, 1) // something may have been mounted or unmounted
	waiting.Go(func() {
		err := watchMounts(ctx, "/proc/self/mountinfo", func() {
			select {
			case mounts <- struct{}{}:
			default: // one is pending
			}
		})
		if ctx.Err() == nil {
			w.log.Warn("cannot watch the mount table; mounts are found by scans", "every", scanInterval, "err", err)
		}
	})
	for {
		err := w.watch(ctx, mounts)
		if err == nil {
			return nil
		}
		if !w.polling {
			w.log.Error("cannot watch launcher directories: inotify failed, polling", "every", pollInterval, "err", err)
		}
		w.polling = true
		w.forget()
		w.scan(nil)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollInterval):
		}
	}
}

// watch runs with one inotify instance until it fails.
func (w *Watcher) watch(ctx context.Context, mounted <-chan struct{}) error {
	notify, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		return fmt.Errorf("inotify (is fs.inotify.max_user_instances reached?): %w", err)
	}
	defer func() { _ = notify.Close() }() // nothing is lost with it
	w.forget()
	w.scan(notify)
	w.armed.Store(true)
	if w.polling {
		w.polling = false
		w.log.Info("watching launcher directories again")
	}
	again := time.NewTicker(scanInterval)
	defer again.Stop()
	var soon <-chan time.Time
	for mounts := mounted; ; {
		if soon == nil && !w.settled {
			soon = time.After(pollInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case ev, open := <-notify.Events:
			if !open {
				return errors.New("inotify closed")
			}
			w.events(notify, ev)
		case err, open := <-notify.Errors:
			if !open {
				return errors.New("inotify closed")
			}
			w.log.Warn("inotify lost events; scanning all launcher directories", "err", err)
			w.forget()
			w.scan(notify)
		case <-again.C:
			w.tick(notify)
		case <-mounts:
			w.scan(notify)
			// fsnotify may learn only later that a watch has ended with its mount. So
			// check again, and do only that for a storm of mounts.
			soon, mounts = time.After(pollInterval), nil
		case <-soon:
			w.check(notify)
			soon, mounts = nil, mounted
		case <-w.changed:
			w.check(notify)
		}
	}
}

func (w *Watcher) events(notify *fsnotify.Watcher, first fsnotify.Event) {
	for _, ev := range coalesce(first, notify.Events) {
		w.event(notify, ev)
	}
}

// coalesce takes the waiting events too, at most a buffer full: a storm may never end.
func coalesce(ev fsnotify.Event, more <-chan fsnotify.Event) map[string]fsnotify.Event {
	all := map[string]fsnotify.Event{ev.Name: ev}
	if len(more) >= stormSize {
		<-time.After(stormDelay)
	}
	for range cap(more) {
		select {
		case ev := <-more:
			ev.Op |= all[ev.Name].Op
			all[ev.Name] = ev
		default:
			return all
		}
	}
	return all
}
