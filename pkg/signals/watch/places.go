package watch

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Places watches launcher directories wherever it is told that they are: the
// launcher pods' volumes. Kubelet mounts and unmounts those whenever it likes,
// so a place may be missing, and another directory at any time. Nothing is kept
// open there: an inotify watch does not hold up an unmount.
type Places struct {
	look func(name string)
	loop loop

	mu   sync.Mutex
	told map[string][]string // paths by name
	news bool                // told is not what there is

	// there is owned by Run: what is watched, by path.
	there map[string]*place
	// mounts is nil where it cannot be had.
	mounts *mounts
}

// place is one path at which there may be a launcher directory.
type place struct {
	names []string // whose it is
	// seen is the directory that was there last; watched: inotify has it.
	seen    identity
	watched bool
	refused bool // inotify would not have it, and that was said
	looked  bool // everybody in names has been asked to look
}

// NewPlaces returns a watcher of no place yet. look is called with the name of
// a VM one of whose launcher directories may have changed; it must not block.
func NewPlaces(log *slog.Logger, look func(name string)) *Places {
	return &Places{
		look: look, loop: loop{log: log, changed: make(chan struct{}, 1)},
		told: map[string][]string{}, there: map[string]*place{},
	}
}

// Set tells which launcher directories name has, in place of what was told of
// it before; none forgets it, though a look may still be under way. New ones
// are looked at once they are watched, missing ones too. It may be called
// before and during Run, from any goroutine, and does not block.
func (p *Places) Set(name string, dirs ...Directory) {
	paths := make([]string, 0, len(dirs))
	for _, d := range dirs {
		paths = append(paths, filepath.Join(d.Base, d.Name))
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Equal(p.told[name], paths) {
		return
	}
	if p.told[name] = paths; len(paths) == 0 {
		delete(p.told, name)
	}
	p.news = true
	select {
	case p.loop.changed <- struct{}{}:
	default: // it is on its way
	}
}

// Armed tells whether the first scan is done with all watches in place.
func (p *Places) Armed() bool { return p.loop.armed.Load() }

// Run watches until ctx ends. Nothing that happens to a directory ends it.
func (p *Places) Run(ctx context.Context) error {
	var err error
	if p.mounts, err = openMounts(); err != nil {
		p.loop.log.Warn("cannot hear of mounts; looking for them instead", "err", err)
	}
	defer p.mounts.close()
	p.loop.run(ctx, p)
	return nil
}

// hear takes over what was told.
func (p *Places) hear(notify *fsnotify.Watcher) {
	names := p.names()
	if names == nil {
		return
	}
	for path := range p.there {
		if names[path] == nil {
			delete(p.there, path)
			unwatch(notify, path)
		}
	}
	for path, names := range names {
		slices.Sort(names)
		switch at := p.there[path]; {
		case at == nil:
			p.there[path] = &place{names: names}
		case !slices.Equal(at.names, names): // somebody new has not heard of it
			at.names, at.looked = names, false
		}
	}
}

// names is whose every path is; nil if there is no news.
func (p *Places) names() map[string][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.news {
		return nil
	}
	p.news = false
	names := map[string][]string{}
	for name, paths := range p.told {
		for _, path := range paths {
			names[path] = append(names[path], name)
		}
	}
	return names
}

func (p *Places) forget() {
	for _, at := range p.there {
		at.seen, at.watched = identity{}, false
	}
}

func (p *Places) scan(notify *fsnotify.Watcher) {
	p.hear(notify)
	for path, at := range p.there {
		p.arm(notify, path, at)
		p.lookAt(at)
	}
}

func (p *Places) check(notify *fsnotify.Watcher) {
	p.hear(notify)
	// See Watcher.watched.
	kept := make(map[string]bool, len(p.there))
	for _, path := range notify.WatchList() {
		kept[path] = true
	}
	mounted := p.mounts.changed()
	for path, at := range p.there {
		at.watched = at.watched && kept[path]
		if at.watched && at.looked && !mounted {
			continue // any other change ends the watch
		}
		if p.arm(notify, path, at) || !at.looked {
			p.lookAt(at)
		}
	}
}

// event takes only the names that count: others are of no interest, however
// often they change. The end of a directory is seen by check.
func (p *Places) event(_ *fsnotify.Watcher, ev fsnotify.Event) {
	parent, name := filepath.Split(filepath.Clean(ev.Name))
	at := p.there[filepath.Clean(parent)]
	if at != nil && (name == signals.FileTrigger || name == signals.FileVM) && ev.Op != fsnotify.Chmod {
		p.lookAt(at)
	}
}

// arm watches what is at path now, and tells whether that is to be looked at:
// it is not what was there before, or cannot be watched.
func (p *Places) arm(notify *fsnotify.Watcher, path string, at *place) bool {
	now := identify(path)
	is := now != identity{}
	if now == at.seen && is == at.watched {
		return false
	}
	at.seen, at.watched = now, false
	unwatch(notify, path)
	if !is || notify == nil {
		return true
	}
	if err := notify.Add(path); err != nil {
		if !at.refused {
			p.loop.log.Warn("cannot watch a launcher directory; it is looked at now and then", "path", path, "every", fast, "err", err)
		}
		at.refused = true
		return true
	}
	at.watched, at.refused = true, false
	return true
}

func (p *Places) lookAt(at *place) {
	at.looked = true
	for _, name := range at.names {
		p.look(name)
	}
}

// identity tells a directory from others that are there at the same time. The
// zero identity is that of no directory.
type identity struct{ device, inode uint64 }

// identify follows no link. What cannot be looked at is no directory as long
// as that lasts; the look will say what is wrong.
func identify(path string) identity {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return identity{}
	}
	return identity{st.Dev, st.Ino}
}
