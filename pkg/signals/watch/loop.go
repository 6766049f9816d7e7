package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Slow is how often everything is scanned, because inotify can lose events.
// Fast is how often what is missing is looked for, and everything while there
// is no inotify.
const (
	slow = 10 * time.Second
	fast = 500 * time.Millisecond
)

// A storm of events is taken together, a name once: one tenant's renames must
// not be in the way of another's trigger. It is a storm where many wait, and
// then the rest of it is waited for.
const (
	buffer = 1024
	many   = 64
	storm  = 2 * time.Millisecond
)

// scene is what a loop keeps under watch.
type scene interface {
	// scan arms what is not armed as it is there now, and has everything looked
	// at that may have changed. Without inotify notify is nil.
	scan(notify *fsnotify.Watcher)
	// check does so for what inotify does not watch, or no more.
	check(notify *fsnotify.Watcher)
	// settled tells whether there was nothing left for check to arm.
	settled() bool
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
	mounts  chan struct{} // something may have been mounted or unmounted
	blind   bool          // there is no inotify
}

func (l *loop) run(ctx context.Context, s scene) {
	var ear sync.WaitGroup
	defer ear.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mounts = make(chan struct{}, 1)
	ear.Go(func() {
		Mounts(ctx, l.log, func() {
			select {
			case l.mounts <- struct{}{}:
			default: // it is on its way
			}
		})
	})
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
	notify, err := fsnotify.NewBufferedWatcher(buffer)
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
	again := time.NewTicker(slow)
	defer again.Stop()
	var soon <-chan time.Time
	for mounts := l.mounts; ; {
		if soon == nil && !s.settled() {
			soon = time.After(fast)
		}
		select {
		case <-ctx.Done():
			return nil
		case ev, open := <-notify.Events:
			if !open {
				return errors.New("inotify closed")
			}
			hand(s, notify, ev)
		case err, open := <-notify.Errors:
			if !open {
				return errors.New("inotify closed")
			}
			l.log.Warn("inotify lost events; looking at every launcher directory", "err", err)
			s.forget()
			s.scan(notify)
		case <-again.C:
			s.scan(notify)
		case <-mounts:
			s.scan(notify)
			// fsnotify may hear later than we that a watch has ended with its mount:
			// check again, and do no more than that for a storm of mounts.
			soon, mounts = time.After(fast), nil
		case <-soon:
			s.check(notify)
			soon, mounts = nil, l.mounts
		case <-l.changed:
			s.check(notify)
		}
	}
}

func hand(s scene, notify *fsnotify.Watcher, ev fsnotify.Event) {
	for _, ev := range together(ev, notify.Events) {
		s.event(notify, ev)
	}
}

// together takes what else has come in, at most a buffer full: a storm may
// never end.
func together(ev fsnotify.Event, more <-chan fsnotify.Event) map[string]fsnotify.Event {
	all := map[string]fsnotify.Event{ev.Name: ev}
	if len(more) >= many {
		<-time.After(storm)
	}
	for range cap(more) {
		select {
		case ev, open := <-more:
			if !open {
				return all // the next one to read hears of it, too
			}
			ev.Op |= all[ev.Name].Op
			all[ev.Name] = ev
		default:
			return all
		}
	}
	return all
}
