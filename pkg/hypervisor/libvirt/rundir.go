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

// runDir reads libvirt's status files of its running domains: NAME.xml, written by rename
// (virFileRewrite) and removed after the end.
type runDir struct {
	path string // "" = there is none

	mu    sync.Mutex
	cache map[string]entry // as last looked at
}

// entry is the run directory's entry of a domain.
type entry struct {
	status
	file  os.FileInfo // the file that was read
	start uint64      // of its process, 0 until that was identified
	gone  bool        // the process has ended, although the file is still there
}

// live reports whether the run directory alone proves that the domain runs.
func (e *entry) live() bool { return e.start != 0 && !e.gone }

// instance returns the instance, with PID 0 if its process is not identified.
func (e *entry) instance() grace.Instance {
	if !e.live() {
		return grace.Instance{UUID: e.uuid}
	}
	return grace.Instance{UUID: e.uuid, PID: e.pid, Start: e.start}
}

func (e *entry) domain(p grace.Power) hypervisor.Domain {
	return hypervisor.Domain{Name: e.name, Domain: grace.Domain{Instance: e.instance(), Power: p, Agent: e.agent, Grace: e.grace}}
}

func newRunDir(path string) *runDir { return &runDir{path: path, cache: map[string]entry{}} }

// names returns the names of all domains that have a file, and drops the others from the
// cache.
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
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.cache, func(name string, _ entry) bool { return !slices.Contains(names, name) })
	return names, nil
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
	e, err := r.read(name, old)
	if err != nil {
		return entry{}, err
	}
	if e.start == 0 {
		e.start, err = identify(e.status)
	} else {
		err = process.Check(e.pid, e.start)
	}
	e.gone = errors.Is(err, process.ErrGone)
	if err != nil && !e.gone {
		return entry{}, fmt.Errorf("identify QEMU of %s: %w", name, err)
	}
	r.mu.Lock()
	r.cache[name] = e
	r.mu.Unlock()
	return e, nil
}

// read parses a file, or takes it from the cache.
func (r *runDir) read(name string, old entry) (entry, error) {
	path := filepath.Join(r.path, name+".xml")
	if now, err := os.Lstat(path); err == nil && old.file != nil && same(old.file, now) {
		return old, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return entry{}, fmt.Errorf("libvirt's status of %s: %w", name, err)
	}
	defer f.Close()
	file, err := isLibvirts(f)
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w", path, err)
	}
	s, err := parseStatus(io.LimitReader(f, maxStatus))
	if err == nil && s.name != name {
		err = fmt.Errorf("it is of %q", s.name)
	}
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w", path, err)
	}
	fresh := entry{status: s, file: file}
	if old.pid == s.pid && old.uuid == s.uuid {
		fresh.start = old.start
	}
	return fresh, nil
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

func isLibvirts(f *os.File) (os.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case stat.Uid != 0:
		return nil, fmt.Errorf("it belongs to uid %d, not to root", stat.Uid)
	case info.Size() > maxStatus:
		return nil, fmt.Errorf("%d bytes are too many", info.Size())
	}
	return info, nil
}
