package durable

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
)

var errInjected = errors.New("injected")

// traceFS notes every step in order, and lets the named one fail.
type traceFS struct {
	FS
	failing string

	mu    sync.Mutex
	steps []string
}

func newTrace(failing string) *traceFS { return &traceFS{FS: osFS{}, failing: failing} }

// step records what is tried, and returns whether it may be done.
func (t *traceFS) step(what string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = append(t.steps, what)
	if what == t.failing {
		return errInjected
	}
	return nil
}

func (t *traceFS) taken() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.steps)
}

func label(path string) string {
	if name := filepath.Base(path); !IsTemp(name) {
		return name
	}
	return "temp"
}

func (t *traceFS) CreateTemp(dir, pattern string) (File, error) {
	if err := t.step("create temp"); err != nil {
		return nil, err
	}
	f, err := t.FS.CreateTemp(dir, pattern)
	if err != nil {
		return nil, err
	}
	return &traceFile{File: f, t: t}, nil
}

func (t *traceFS) Rename(from, to string) error {
	if err := t.step("rename " + label(from) + " to " + label(to)); err != nil {
		return err
	}
	return t.FS.Rename(from, to)
}

func (t *traceFS) Remove(path string) error {
	if err := t.step("remove " + label(path)); err != nil {
		return err
	}
	return t.FS.Remove(path)
}

func (t *traceFS) Mkdir(path string, mode fs.FileMode) error {
	if err := t.step("mkdir " + label(path)); err != nil {
		return err
	}
	return t.FS.Mkdir(path, mode)
}

func (t *traceFS) SyncDir(dir string) error {
	if err := t.step("fsync directory " + filepath.Base(dir)); err != nil {
		return err
	}
	return t.FS.SyncDir(dir)
}

type traceFile struct {
	File
	t *traceFS
}

func (f *traceFile) Chmod(mode fs.FileMode) error {
	if err := f.t.step("chmod"); err != nil {
		return err
	}
	return f.File.Chmod(mode)
}

// Write leaves half of the data behind when it fails, as a full disk does.
func (f *traceFile) Write(data []byte) (int, error) {
	if err := f.t.step("write"); err != nil {
		n, werr := f.File.Write(data[:len(data)/2])
		return n, errors.Join(err, werr)
	}
	return f.File.Write(data)
}

func (f *traceFile) Sync() error {
	if err := f.t.step("fsync file"); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *traceFile) Close() error {
	return errors.Join(f.t.step("close"), f.File.Close())
}
