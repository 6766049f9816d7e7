package libvirt

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// maxStatus bounds a status file; libvirt's have some 12 KiB.
const maxStatus = 4 << 20

// runDir reads the status files that libvirt keeps of its running domains:
// NAME.xml, written by rename (virFileRewrite), removed after the end.
type runDir struct {
	path string // "" = there is none

	mu    sync.Mutex
	cache map[string]cached
}

// cached is a parsed file. The file's identity reports whether it still counts.
type cached struct {
	id     fileID
	status status
	start  uint64 // of its process, 0 until that was identified
}

type fileID struct {
	inode uint64
	mtime unix.Timespec
	size  int64
}

// entry is what the run directory says of a domain. Its instance has PID 0
// where the process cannot be identified.
type entry struct {
	status
	instance grace.Instance
	// gone: the process has ended, although the file is still there.
	gone bool
}

// live: the run directory alone proves that the domain runs.
func (e *entry) live() bool { return e.instance.PID != 0 }

func (e *entry) domain(p grace.Power) hypervisor.Domain {
	return hypervisor.Domain{Name: e.name, Instance: e.instance, Power: p, Agent: e.agent, Grace: e.grace}
}

func newRunDir(path string) *runDir { return &runDir{path: path, cache: map[string]cached{}} }

// names returns the names of all domains that have a file, sorted.
func (r *runDir) names() ([]string, error) {
	if r.path == "" {
		return nil, fmt.Errorf("libvirt's run directory: %w", fs.ErrNotExist)
	}
	files, err := os.ReadDir(r.path)
	if err != nil {
		return nil, fmt.Errorf("libvirt's run directory: %w", err)
	}
	var names []string
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".xml"); ok && f.Type().IsRegular() {
			names = append(names, name)
		}
	}
	slices.Sort(names) // with their suffix they sort otherwise
	r.forget(names)
	return names, nil
}

// forget drops from the cache what has no file any more.
func (r *runDir) forget(but []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.cache, func(name string, _ cached) bool {
		_, found := slices.BinarySearch(but, name)
		return !found
	})
}

// look reads a domain's entry. The error is fs.ErrNotExist if there is none;
// any other error says nothing about the domain.
func (r *runDir) look(name string) (entry, error) {
	if r.path == "" || name == "" || strings.ContainsRune(name, '/') {
		return entry{}, fmt.Errorf("libvirt's status of %q: %w", name, fs.ErrNotExist)
	}
	r.mu.Lock()
	old := r.cache[name]
	r.mu.Unlock()
	c, err := r.read(name, old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c, err = r.read(name, old) // it may have been just replaced
	}
	if err != nil {
		return entry{}, err
	}
	if c.start == 0 {
		c.start, err = identify(c.status)
	} else {
		err = process.Check(c.status.pid, c.start)
	}
	gone := errors.Is(err, process.ErrGone)
	if err != nil && !gone {
		return entry{}, fmt.Errorf("identify QEMU of %s: %w", name, err)
	}
	r.mu.Lock()
	r.cache[name] = c
	r.mu.Unlock()
	e := entry{status: c.status, instance: grace.Instance{UUID: c.status.uuid}, gone: gone}
	if c.start != 0 && !gone {
		e.instance.PID, e.instance.Start = c.status.pid, c.start
	}
	return e, nil
}

// read parses a file, or takes it from the cache.
func (r *runDir) read(name string, old cached) (cached, error) {
	path := filepath.Join(r.path, name+".xml")
	var stat unix.Stat_t
	if unix.Lstat(path, &stat) == nil && old.id == (fileID{stat.Ino, stat.Mtim, stat.Size}) {
		return old, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return cached{}, fmt.Errorf("libvirt's status of %s: %w", name, err)
	}
	defer f.Close()
	id, err := identity(f)
	if err != nil {
		return cached{}, fmt.Errorf("%s: %w", path, err)
	}
	s, err := parseStatus(io.LimitReader(f, maxStatus))
	if err == nil && s.name != name {
		err = fmt.Errorf("it is of %q", s.name)
	}
	if err != nil {
		return cached{}, fmt.Errorf("%s: %w", path, err)
	}
	fresh := cached{id: id, status: s}
	if old.status.pid == s.pid && old.status.uuid == s.uuid {
		fresh.start = old.start
	}
	return fresh, nil
}

// identity also makes sure that the file is libvirt's.
func identity(f *os.File) (fileID, error) {
	info, err := f.Stat()
	if err != nil {
		return fileID{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return fileID{}, errors.New("not a regular file")
	case stat.Uid != 0:
		return fileID{}, fmt.Errorf("it belongs to uid %d, not to root", stat.Uid)
	case info.Size() > maxStatus:
		return fileID{}, fmt.Errorf("%d bytes are too many", info.Size())
	}
	return fileID{inode: stat.Ino, mtime: unix.Timespec(stat.Mtim), size: stat.Size}, nil
}
