package watch

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Watcher watches launcher directories: those given by Set, or all in one launchers
// directory. Kubelet mounts and unmounts the launcher pods' volumes at any time, so a
// directory may be missing or replaced. The watcher keeps nothing open there: an inotify
// watch does not block an unmount.
type Watcher struct {
	look  func(name string)
	log   *slog.Logger
	armed atomic.Bool
	// changed asks for a check at once.
	changed chan struct{}

	mu     sync.Mutex
	wanted map[string]string // paths by name

	// Only Run uses the following.
	parent  *place // the launchers directory; nil if Set gives the directories
	missing bool   // the launchers directory is missing, and that was logged
	watched map[string]*named
	ticks   int  // of scanInterval
	settled bool // all that can be watched is
	polling bool // there is no inotify
}

// named is a place and its owners.
type named struct {
	place
	names []string
}

// New returns a watcher of the directories that Set gives. look is called with the name
// of a VM whose launcher directory may have changed; it must not block.
func New(log *slog.Logger, look func(name string)) *Watcher {
	return &Watcher{
		look: look, log: log, changed: make(chan struct{}, 1),
		wanted: map[string]string{}, watched: map[string]*named{},
	}
}

// NewParent returns a watcher of all launcher directories in dir, which may come
// and go. Their names are those of the VMs; see New.
func NewParent(dir string, log *slog.Logger, look func(name string)) *Watcher {
	w := New(log, look)
	w.parent = &place{path: filepath.Clean(dir), stat: unix.Stat}
	return w
}

// Set gives name a launcher directory in place of the former one. The zero Directory
// forgets it, though a look may still be under way. A new one is looked at once it is
// watched, even if it is missing. Any goroutine may call Set, before and during Run. It
// does not block.
func (w *Watcher) Set(name string, d Directory) {
	path := ""
	if d != (Directory{}) {
		path = filepath.Join(d.Base, d.Name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted[name] == path {
		return
	}
	if w.wanted[name] = path; path == "" {
		delete(w.wanted, name)
	}
	select {
	case w.changed <- struct{}{}:
	default: // one is pending
	}
}

// Armed reports whether the first scan is done with all watches in place.
func (w *Watcher) Armed() bool { return w.armed.Load() }

// forget marks everything as not watched.
func (w *Watcher) forget() {
	for _, at := range w.watched {
		at.forget()
	}
	if w.parent != nil {
		w.parent.forget()
	}
}

// scan watches what is there now, and then asks for looks at what may have changed.
// Watches come first, so that no change is missed. Without inotify notify is nil.
func (w *Watcher) scan(notify *fsnotify.Watcher) {
	w.arm(notify, func(*named) bool { return true })
}

// check does the same for what inotify does not watch.
func (w *Watcher) check(notify *fsnotify.Watcher) {
	w.arm(notify, func(at *named) bool { return !at.watched || !at.looked })
}

// tick scans, and at each fullScan looks at everything.
func (w *Watcher) tick(notify *fsnotify.Watcher) {
	if w.ticks++; w.ticks%fullScan == 0 {
		w.forget()
	}
	w.scan(notify)
}

// event handles only the names that count; others may change as often as they like.
func (w *Watcher) event(notify *fsnotify.Watcher, ev fsnotify.Event) {
	path := filepath.Clean(ev.Name)
	parent, name := filepath.Dir(path), filepath.Base(path)
	at, inside := w.watched[path], w.watched[parent]
	switch {
	case w.parent != nil && parent == w.parent.path && ev.Op != fsnotify.Chmod:
		if at != nil {
			at.forget()
		}
		w.parent.looked = false
		w.check(notify)
	case at != nil && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)),
		w.parent != nil && path == w.parent.path:
		w.check(notify)
	case inside != nil && (name == signals.FileTrigger || name == signals.FileVM) && ev.Op != fsnotify.Chmod:
		w.lookAt(inside)
	}
}

// arm watches the directories that are due, and asks for looks where needed.
func (w *Watcher) arm(notify *fsnotify.Watcher, due func(*named) bool) {
	kept := watchList(notify)
	if w.parent != nil {
		w.list(notify, kept)
	}
	w.update(notify)
	w.settled = w.parent == nil || w.parent.watched
	for path, at := range w.watched {
		at.watched = at.watched && kept[path]
		if due(at) {
			look, err := at.arm(notify)
			if err != nil {
				w.log.Warn("cannot watch a launcher directory; polling it", "path", path, "every", scanInterval, "err", err)
			}
			if look {
				w.lookAt(at)
			}
		}
		// In a launchers directory that is watched nothing can come unseen.
		w.settled = w.settled && (at.watched || w.parent != nil)
	}
}

func (w *Watcher) lookAt(at *named) {
	for _, name := range at.names {
		w.look(name)
	}
}

// list takes the entries of the launchers directory as wanted, if they may have changed.
// Its parent, where much else may change, is not watched. A missing directory is polled
// for.
func (w *Watcher) list(notify *fsnotify.Watcher, kept map[string]bool) {
	dir, before := w.parent.path, w.parent.seen
	w.parent.watched = w.parent.watched && kept[dir]
	changed, err := w.parent.arm(notify)
	if err != nil {
		w.log.Error("cannot watch the launchers directory", "dir", dir, "err", err)
	}
	if !changed {
		return
	}
	entries, err := os.ReadDir(dir)
	w.report(before, err)
	if w.missing = errors.Is(err, fs.ErrNotExist); err != nil && !w.missing {
		return // unknown, which is not empty
	}
	wanted := make(map[string]string, len(entries))
	for _, e := range entries {
		wanted[e.Name()] = filepath.Join(dir, e.Name())
	}
	for name := range w.wanted {
		if wanted[name] == "" {
			w.look(name)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = wanted
}

// report logs a change of the launchers directory; before is its former ID.
func (w *Watcher) report(before fileID, err error) {
	dir, gone := w.parent.path, errors.Is(err, fs.ErrNotExist)
	switch none := (fileID{}); {
	case gone && !w.missing:
		w.log.Error("the launchers directory is gone; waiting for it", "dir", dir)
	case gone:
	case err != nil:
		w.log.Error("cannot read the launchers directory", "dir", dir, "err", err)
	case w.missing:
		w.log.Info("the launchers directory is back", "dir", dir)
	case before != none && before != w.parent.seen:
		w.log.Warn("the launchers directory is another one now (replaced, mounted over or unmounted); watching that", "dir", dir)
	}
}

// update watches what is wanted, and drops the rest.
func (w *Watcher) update(notify *fsnotify.Watcher) {
	names := w.owners()
	for path := range w.watched {
		if names[path] == nil {
			delete(w.watched, path)
			unwatch(notify, path)
		}
	}
	for path, names := range names {
		slices.Sort(names)
		switch at := w.watched[path]; {
		case at == nil:
			w.watched[path] = &named{place: place{path: path, stat: unix.Lstat}, names: names}
		case !slices.Equal(at.names, names): // a new owner has not seen it
			at.names, at.looked = names, false
		}
	}
}

// owners returns the names for every path.
func (w *Watcher) owners() map[string][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := map[string][]string{}
	for name, path := range w.wanted {
		names[path] = append(names[path], name)
	}
	return names
}
