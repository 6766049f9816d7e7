package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Slow and fast are how often everything is looked at again: slow because
// inotify can lose events, fast while there is no inotify. Fast is also how
// often what is watched must prove to be what is there: a mount over it gives
// no event, and fsnotify passes none on for an unmount.
const (
	slow = 10 * time.Second
	fast = 500 * time.Millisecond
)

// scene is what a loop keeps under watch.
type scene interface {
	// scan arms what is not armed and then has everything looked at. Without
	// inotify notify is nil.
	scan(notify *fsnotify.Watcher)
	// check does the same, cheaply, for what is not there as it was armed.
	check(notify *fsnotify.Watcher)
	event(notify *fsnotify.Watcher, ev fsnotify.Event)
	// forget counts everything as not armed.
	forget()
}

// loop runs a scene with inotify, and without it as long as there is none.
type loop struct {
	log   *slog.Logger
	armed atomic.Bool
	// changed asks for a check at once; nil for a scene that needs none.
	changed chan struct{}
	blind   bool // there is no inotify
}

func (l *loop) run(ctx context.Context, s scene) {
	for {
		err := l.watch(ctx, s)
		if err == nil {
			return
		}
		if !l.blind {
			l.log.Error("cannot watch launcher directories; looking at all of them instead", "every", fast, "err", err)
		}
		l.blind = true
		s.forget()
		s.scan(nil)
		select {
		case <-ctx.Done():
			return
		case <-time.After(fast):
		}
	}
}

// watch runs with one inotify instance until it fails.
func (l *loop) watch(ctx context.Context, s scene) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("inotify (is fs.inotify.max_user_instances reached?): %w", err)
	}
	defer func() { _ = notify.Close() }() // nothing is lost with it
	s.forget()
	s.scan(notify)
	l.armed.Store(true)
	if l.blind {
		l.blind = false
		l.log.Info("watching launcher directories again")
	}
	again, check := time.NewTicker(slow), time.NewTicker(fast)
	defer again.Stop()
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, open := <-notify.Events:
			if !open {
				return errors.New("inotify closed")
			}
			s.event(notify, ev)
		case err, open := <-notify.Errors:
			if !open {
				return errors.New("inotify closed")
			}
			l.log.Warn("inotify lost events; looking at every launcher directory", "err", err)
			s.forget()
			s.scan(notify)
		case <-again.C:
			s.scan(notify)
		case <-check.C:
			s.check(notify)
		case <-l.changed:
			s.check(notify)
		}
	}
}

// unwatch lets go of the watch of path, if there is one.
func unwatch(notify *fsnotify.Watcher, path string) {
	if notify != nil {
		_ = notify.Remove(path) // fails where there is none any more
	}
}
