package watch

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"

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
	there   map[string]*named
	missing bool // one of them is not watched
}

// named is a place and whose it is.
type named struct {
	place
	names []string
}

// NewPlaces returns a watcher of no place yet. look is called with the name of
// a VM one of whose launcher directories may have changed; it must not block.
func NewPlaces(log *slog.Logger, look func(name string)) *Places {
	return &Places{
		look: look, loop: loop{log: log, changed: make(chan struct{}, 1)},
		told: map[string][]string{}, there: map[string]*named{},
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
			p.there[path] = &named{place: place{path: path}, names: names}
		case !slices.Equal(at.names, names): // somebody new has not heard of it
			at.names, at.looked = names, 0
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
		at.place = place{path: at.path, refused: at.refused}
	}
}

func (p *Places) scan(notify *fsnotify.Watcher) {
	p.hear(notify)
	p.arm(notify, func(*named) bool { return true })
}

func (p *Places) check(notify *fsnotify.Watcher) {
	p.hear(notify)
	p.arm(notify, func(at *named) bool { return !at.watched || at.looked == 0 })
}

func (p *Places) settled() bool { return !p.missing }

// event takes only the names that count: others are of no interest, however
// often they change.
func (p *Places) event(notify *fsnotify.Watcher, ev fsnotify.Event) {
	path := filepath.Clean(ev.Name)
	if p.there[path] != nil && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)) {
		p.check(notify)
		return
	}
	parent, name := filepath.Split(path)
	at := p.there[filepath.Clean(parent)]
	if at != nil && (name == signals.FileTrigger || name == signals.FileVM) && ev.Op != fsnotify.Chmod {
		p.lookAt(at)
	}
}

// arm has the places that are due watched, and looked at where that is needed.
func (p *Places) arm(notify *fsnotify.Watcher, due func(*named) bool) {
	kept := watchList(notify)
	p.missing = false
	for path, at := range p.there {
		at.watched = at.watched && kept[path]
		if due(at) {
			look, err := at.arm(notify)
			if err != nil {
				p.loop.log.Warn("cannot watch a launcher directory; it is looked at now and then", "path", path, "every", fast, "err", err)
			}
			if look {
				p.lookAt(at)
			}
		}
		p.missing = p.missing || !at.watched
	}
}

func (p *Places) lookAt(at *named) {
	for _, name := range at.names {
		p.look(name)
	}
}
