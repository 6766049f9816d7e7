package gracecache

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// The model of a disk that loses its power. POSIX promises only what was fsynced: a
// file's data by an fsync of the file, a name by an fsync of its directory. Everything
// else may or may not have reached the disk, each part independently and in any order.

// event is one step of a trace.
type event struct {
	what string // link, unlink, write, sync, dirsync, dirsynced, begin, acked
	path string // relative to the root of the trace; of a call, the VM's domain
	to   *inode
	data []byte
	from int // dirsynced: the index of its dirsync
	want *grace.Record
}

type inode struct{ dir bool }

// tracer is the machine's file system, and records each step.
type tracer struct {
	durable.FS
	root string
	// forgets is a step that this disk leaves out: "file", or a directory.
	forgets string
	// failing is the number of the step that fails, -1 for none.
	failing int

	mu     sync.Mutex
	tried  int
	trace  []event
	begin  int // before that, everything was on the disk already
	inodes map[string]*inode
}

func newTracer(root string) *tracer {
	return &tracer{FS: durable.Real().FS, root: root, failing: -1, inodes: map[string]*inode{}}
}

var errTried = errors.New("this step fails")

// try does a step, and records its effect at the moment of its end.
func (t *tracer) try(do func() error, notes func() []event) error {
	t.mu.Lock()
	fails := t.tried == t.failing
	t.tried++
	t.mu.Unlock()
	if fails {
		return errTried
	}
	err := do()
	if err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.trace = append(t.trace, notes()...)
	}
	return err
}

func (t *tracer) note(e event) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trace = append(t.trace, e)
	return len(t.trace) - 1
}

func (t *tracer) rel(path string) string { return strings.TrimPrefix(path, t.root+"/") }

// holds puts a file into the trace that was on the disk before it.
func (t *tracer) holds(path string, data []byte) {
	node := &inode{}
	t.inodes[path] = node
	t.trace = append(t.trace,
		event{what: "link", path: path, to: node}, event{what: "write", to: node, data: data}, event{what: "sync", to: node})
	t.trace = append(t.trace, event{what: "dirsynced", path: filepath.Dir(path), from: len(t.trace)})
}

func (t *tracer) CreateTemp(dir, pattern string) (f durable.File, err error) {
	node := &inode{}
	err = t.try(func() error { f, err = t.FS.CreateTemp(dir, pattern); return err }, func() []event {
		t.inodes[t.rel(f.Name())] = node
		return []event{{what: "link", path: t.rel(f.Name()), to: node}}
	})
	if err != nil {
		return nil, err
	}
	return &tracedFile{f, t, node}, nil
}

// Rename is two changes of names: both need not reach the disk.
func (t *tracer) Rename(from, to string) error {
	return t.try(func() error { return t.FS.Rename(from, to) }, func() []event {
		node := t.inodes[t.rel(from)]
		delete(t.inodes, t.rel(from))
		t.inodes[t.rel(to)] = node
		return []event{{what: "link", path: t.rel(to), to: node}, {what: "unlink", path: t.rel(from)}}
	})
}

func (t *tracer) Remove(path string) error {
	return t.try(func() error { return t.FS.Remove(path) }, func() []event {
		delete(t.inodes, t.rel(path))
		return []event{{what: "unlink", path: t.rel(path)}}
	})
}

func (t *tracer) Mkdir(path string, mode fs.FileMode) error {
	return t.try(func() error { return t.FS.Mkdir(path, mode) }, func() []event {
		return []event{{what: "link", path: t.rel(path), to: &inode{dir: true}}}
	})
}

// SyncDir makes durable what was done before it began, and nothing before it ends.
func (t *tracer) SyncDir(dir string) error {
	name := "."
	if dir != t.root {
		name = t.rel(dir)
	}
	if t.forgets == name {
		return nil
	}
	began := t.note(event{what: "dirsync"})
	return t.try(func() error { return t.FS.SyncDir(dir) }, func() []event {
		return []event{{what: "dirsynced", path: name, from: began}}
	})
}

type tracedFile struct {
	durable.File
	t    *tracer
	node *inode
}

func (f *tracedFile) Write(data []byte) (n int, err error) {
	err = f.t.try(func() error { n, err = f.File.Write(data); return err }, func() []event {
		return []event{{what: "write", to: f.node, data: slices.Clone(data)}}
	})
	return n, err
}

func (f *tracedFile) Sync() error {
	if f.t.forgets == "file" {
		return nil
	}
	return f.t.try(f.File.Sync, func() []event { return []event{{what: "sync", to: f.node}} })
}

// call runs a Put (want is the record) or a Delete (want is nil).
func (t *tracer) call(domain string, want *grace.Record, do func() error) error {
	t.note(event{what: "begin", path: domain, want: want})
	err := do()
	if err == nil {
		t.note(event{what: "acked", path: domain, want: want})
	}
	return err
}

// link is a value that a name had: nil for none.
type link struct {
	to *inode
	at int
}

type content struct {
	data   []byte
	synced int
}

// states calls visit with every disk that a loss of power before event number
// n can leave: the files by their paths, nil for a directory.
func states(trace []event, n int, visit func(files map[string][]byte)) {
	names, contents := replay(trace[:n])
	paths := slices.Sorted(maps.Keys(names))
	chosen := map[string]*inode{}
	var choose func(rest []string)
	choose = func(rest []string) {
		if len(rest) == 0 {
			fill(chosen, contents, visit)
			return
		}
		seen := map[*inode]bool{}
		for _, l := range names[rest[0]] {
			if !seen[l.to] {
				seen[l.to] = true
				chosen[rest[0]] = l.to
				choose(rest[1:])
			}
		}
	}
	choose(paths)
}

// replay returns the values that each name may have, and the known content of each file.
func replay(trace []event) (map[string][]link, map[*inode]content) {
	names, contents := map[string][]link{}, map[*inode]content{}
	for i, e := range trace {
		switch e.what {
		case "link", "unlink":
			if names[e.path] == nil {
				names[e.path] = []link{{nil, -1}}
			}
			names[e.path] = append(names[e.path], link{e.to, i})
		case "write":
			c := contents[e.to]
			contents[e.to] = content{append(slices.Clone(c.data), e.data...), c.synced}
		case "sync":
			c := contents[e.to]
			contents[e.to] = content{c.data, len(c.data)}
		case "dirsynced":
			for path, links := range names {
				if filepath.Dir(path) != e.path {
					continue
				}
				for len(links) > 1 && links[1].at < e.from {
					links = links[1:]
				}
				names[path] = links
			}
		}
	}
	return names, contents
}

// fill gives each named file one of its possible contents.
func fill(chosen map[string]*inode, contents map[*inode]content, visit func(map[string][]byte)) {
	files := map[string][]byte{}
	paths := slices.Sorted(maps.Keys(chosen))
	var next func(rest []string)
	next = func(rest []string) {
		if len(rest) == 0 {
			visit(files)
			return
		}
		path, node := rest[0], chosen[rest[0]]
		_, parent := files[filepath.Dir(path)]
		switch {
		case node == nil || !parent && filepath.Dir(path) != ".":
			next(rest[1:])
			return
		case node.dir:
			files[path] = nil
			next(rest[1:])
		default:
			for _, data := range survivors(contents[node]) {
				files[path] = data
				next(rest[1:])
			}
		}
		delete(files, path)
	}
	next(paths)
}

// survivors returns the possible contents of a file: what was synced, and of the rest
// all, nothing, zeros, or a torn part with nothing or zeros behind it.
func survivors(c content) [][]byte {
	sure, rest := c.data[:c.synced], c.data[c.synced:]
	if len(rest) == 0 {
		return [][]byte{slices.Concat([]byte{}, sure)}
	}
	half, zeros := rest[:len(rest)/2], make([]byte, len(rest))
	return [][]byte{
		slices.Concat([]byte{}, sure), slices.Concat(sure, rest), slices.Concat(sure, zeros),
		slices.Concat(sure, half), slices.Concat(sure, half, zeros[len(half):]),
	}
}
