package hold

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// reasonTimeout is how long a pod may take to show its deletion. The hook waits for 2 s.
	reasonTimeout = 1300 * time.Millisecond
	// askInterval is the pause between two questions for a pod, askTimeout is for each.
	askInterval = 300 * time.Millisecond
	askTimeout  = 500 * time.Millisecond
	// moveInterval is how often a migration, or the fate of a VMI, is asked for again.
	moveInterval = 5 * time.Second
	moveTimeout  = 2 * time.Second
	// lookInterval is how often a launcher directory is looked at without news, while its pod
	// ends or it cannot be read.
	lookInterval = 5 * time.Second
	saveTimeout  = 500 * time.Millisecond
	// retryInterval is the pause after a file could not be made or removed.
	retryInterval = 100 * time.Millisecond
)

// launcher is one launcher pod. Its own goroutine owns all fields but the first ones.
type launcher struct {
	news    chan struct{}
	unsaved atomic.Bool // its record may be lost
	holding atomic.Bool
	begun   bool // the Keeper's

	k   *Keeper
	dir Directory
	log *slog.Logger
	// rec has what survives the agent. Its Namespace, Name and Pod never change.
	rec grace.Record
	// pod and vm are as last seen; shown means that the watch shows the pod now.
	pod   Launcher
	vm    VM
	shown bool
	// signalledAt is when the trigger was first seen. inherited means that an earlier agent held
	// the launcher and its record is lost: the hold counts from the pod's deletion.
	signalledAt grace.Mono
	looked      bool
	inherited   bool
	gone, left  bool
	told        bool // the VMI has its Event
	// migrates means that the API server has said that there is a migration of the VM, which the
	// VMI does not show yet.
	migrates                       bool
	podAsked, moveAsked, fateAsked grace.Mono
	saved                          chan struct{} // closed when the last write is over
	logged                         string
}

func newLauncher(k *Keeper, r grace.Record) *launcher {
	l := &launcher{
		news: make(chan struct{}, 1), k: k, rec: r, dir: k.cfg.Directory(r.Pod, r.Namespace, r.Name),
		log: k.cfg.Log.With("namespace", r.Namespace, "name", r.Name, "pod", r.Pod),
	}
	l.holding.Store(r.Hold.UnderWay())
	return l
}

// run keeps the launcher until it is gone, and returns true, or until ctx ends.
func (l *launcher) run(ctx context.Context) (gone bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-l.news:
		case <-timer.C:
		}
		again, gone := l.step(ctx)
		if gone {
			return true
		}
		timer.Reset(max(0, again.Sub(l.k.cfg.Clock.Now())))
	}
}

// step does what is due, and returns when to look again without news.
func (l *launcher) step(ctx context.Context) (again grace.Mono, gone bool) {
	l.see()
	l.askFate(ctx)
	view, err := l.dir.LookAtHold()
	now := l.k.cfg.Clock.Now()
	if err != nil {
		l.failed("the launcher directory cannot be read; its launcher goes on after 2 s", err)
		return now.Add(lookInterval), false
	}
	if !view.Present && !l.shown {
		if l.rec.Hold.UnderWay() {
			l.over(ctx, l.goneAs())
		}
		return grace.Never, true
	}
	if !l.looked {
		l.looked, l.inherited = true, view.Trigger && view.Answered && view.Held && !l.rec.Hold.UnderWay()
	}
	if !view.Trigger {
		l.signalledAt = 0
	} else if l.signalledAt == 0 {
		l.signalledAt = now
	}
	f := l.facts(now)
	f.view = view
	return l.act(ctx, f, now), false
}

// act decides until there is nothing to do but to wait.
func (l *launcher) act(ctx context.Context, f *facts, now grace.Mono) (again grace.Mono) {
	d := f.decide(now)
	switch d.do {
	case askPod:
		if l.podAsked == 0 || now >= l.podAsked.Add(askInterval) {
			l.askPod(ctx, d.again)
			return l.k.cfg.Clock.Now()
		}
		return min(d.again, l.podAsked.Add(askInterval))
	case askMove:
		l.askMove(ctx)
		next := l.facts(now)
		next.view, next.asked = f.view, true
		return l.act(ctx, next, now)
	case holdIt:
		if err := l.hold(ctx, d.hold, f); err != nil {
			l.failed("the launcher cannot be held, and goes on after 2 s; trying again", err)
			return now.Add(retryInterval)
		}
	case letGo:
		if err := l.letGo(ctx, d.outcome); err != nil {
			l.failed("the launcher cannot be let go; trying again", err)
			return now.Add(retryInterval)
		}
	case wait:
		if l.rec.Hold.UnderWay() && l.unsaved.Load() {
			l.save(ctx)
		}
	}
	if !l.shown || l.rec.Hold.UnderWay() {
		d.again = min(d.again, now.Add(lookInterval))
	}
	return d.again
}

// hold has the launcher wait. The record comes first: an agent that starts in the middle must
// know the latest moment.
func (l *launcher) hold(ctx context.Context, h grace.Hold, f *facts) error {
	l.rec.Hold = h.Told(l.k.cfg.Clock.Wall().Add(-l.k.cfg.Clock.Now().Sub(h.Start)))
	l.holding.Store(true)
	l.save(ctx)
	if f.waits() && f.hold.UnderWay() {
		return nil
	}
	if err := l.dir.Hold(); err != nil {
		return err
	}
	if !l.told {
		l.told = true
		l.log.Info("the guest is not asked to shut down yet: the VM may be moved", "cause", l.rec.Hold.Reason, "until", l.rec.Hold.UntilAt)
		l.reportHeld()
	}
	return nil
}

// letGo has the launcher go on.
func (l *launcher) letGo(ctx context.Context, how Outcome) error {
	if err := l.dir.Release(); err != nil && !errors.Is(err, fs.ErrNotExist) { // else nobody waits there
		return err
	}
	if l.rec.Hold.UnderWay() {
		l.over(ctx, how)
	}
	return nil
}

// over forgets a hold that has ended.
func (l *launcher) over(ctx context.Context, how Outcome) {
	was := l.rec.Hold
	l.rec.Hold, l.migrates, l.told = grace.Hold{}, false, false
	l.holding.Store(false)
	l.save(ctx)
	l.log.Info("the hold is over", "cause", was.Reason, "outcome", how)
	l.k.cfg.Ended(how)
	l.reportOver(&was, how)
}

// goneAs returns how a hold ended whose launcher is gone.
func (l *launcher) goneAs() Outcome {
	switch {
	case l.left:
		return Moved
	case l.gone:
		return VMIDeleted
	default:
		return LauncherGone
	}
}

// failed logs an error once.
func (l *launcher) failed(what string, err error) {
	if text := what + err.Error(); text != l.logged {
		l.logged = text
		l.log.Warn(what, "err", err) //nolint:sloglint // one of four
	}
}
