package watch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Watcher watches the launchers directory and every launcher directory in it.
type Watcher struct {
	dir  string
	look func(name string)
	log  *slog.Logger
	loop loop
	// below is owned by Run.
	below map[string]*place
	// parent is the launchers directory as it was when its watch was made.
	parent  os.FileInfo
	missing bool
}

// New returns a watcher of dir. look is called with the name of a launcher
// directory that may have changed; it must not block.
func New(dir string, log *slog.Logger, look func(name string)) *Watcher {
	return &Watcher{dir: filepath.Clean(dir), look: look, log: log, loop: loop{log: log}, below: map[string]*place{}}
}

// Armed tells whether the first scan is done with all watches in place.
func (w *Watcher) Armed() bool { return w.loop.armed.Load() }

// Run watches until ctx ends. Nothing that happens to a directory ends it.
func (w *Watcher) Run(ctx context.Context) error {
	w.loop.run(ctx, w)
	return nil
}

// forget has everything looked at that was watched: it may be gone.
func (w *Watcher) forget() {
	for name := range w.below {
		w.look(name)
	}
	clear(w.below)
	w.parent = nil
}

// check scans everything again once the launchers directory is back, or where
// a watch has ended.
func (w *Watcher) check(notify *fsnotify.Watcher) {
	kept := watchList(notify)
	ended := w.parent == nil || !kept[w.dir]
	for _, at := range w.below {
		ended = ended || at.watched && !kept[at.path]
	}
	if ended {
		w.scan(notify)
	}
}

func (w *Watcher) settled() bool { return w.parent != nil }

func (w *Watcher) event(notify *fsnotify.Watcher, ev fsnotify.Event) {
	switch parent, name := filepath.Split(filepath.Clean(ev.Name)); filepath.Clean(parent) {
	case w.dir:
		if ev.Has(fsnotify.Create) || ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) {
			delete(w.below, name)
			w.child(notify, name)
		}
	case filepath.Dir(w.dir):
		// The launchers directory itself came or went.
		if filepath.Clean(ev.Name) == w.dir && !ev.Has(fsnotify.Chmod) {
			w.scan(notify)
		}
	default:
		// Other names are of no interest, however often they change.
		if (name == signals.FileTrigger || name == signals.FileVM) && !ev.Op.Has(fsnotify.Chmod) {
			w.look(filepath.Base(parent))
		}
	}
}

// scan arms what is not armed and has looked at what may have changed: watches
// first, so that nothing can happen in between.
func (w *Watcher) scan(notify *fsnotify.Watcher) {
	kept := watchList(notify)
	if !w.arm(notify, kept) {
		return
	}
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		w.log.Error("cannot read the launchers directory", "dir", w.dir, "err", err)
		return
	}
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Name()] = true
		if at := w.below[e.Name()]; at != nil {
			at.watched = at.watched && kept[at.path]
		}
		w.child(notify, e.Name())
	}
	for name := range w.below {
		if !there[name] {
			delete(w.below, name)
			w.look(name)
		}
	}
}

// arm watches the launchers directory: one that is removed, replaced or
// mounted over takes its watch along, sometimes without an event. Not its
// parent, where much may happen that is none of ours: while it is missing it
// is looked for instead.
func (w *Watcher) arm(notify *fsnotify.Watcher, kept map[string]bool) bool {
	now, err := os.Stat(w.dir)
	if err != nil {
		if !w.missing {
			w.log.Error("the launchers directory is gone; waiting for it", "dir", w.dir, "err", err)
		}
		w.missing = true
		w.forget()
		return false
	}
	if w.missing {
		w.log.Info("the launchers directory is back", "dir", w.dir)
		w.missing = false
	}
	if notify == nil || w.parent != nil && os.SameFile(w.parent, now) && kept[w.dir] {
		return true
	}
	if w.parent != nil {
		w.log.Warn("the launchers directory is another one now (replaced, mounted over or unmounted); watching that", "dir", w.dir)
	}
	w.forget()
	unwatch(notify, w.dir) // the directory that was there before, if any
	if err := notify.Add(w.dir); err != nil {
		w.log.Error("cannot watch the launchers directory", "dir", w.dir, "err", err)
		return true
	}
	w.parent = now
	return true
}

// child watches one launcher directory and has it looked at if it may have
// changed.
func (w *Watcher) child(notify *fsnotify.Watcher, name string) {
	at := w.below[name]
	if at == nil {
		at = &place{path: filepath.Join(w.dir, name)}
		w.below[name] = at
	}
	look, err := at.arm(notify)
	if err != nil {
		w.log.Warn("cannot watch a launcher directory; it is looked at now and then", "name", name, "every", slow, "err", err)
	}
	if look {
		w.look(name)
	}
}
