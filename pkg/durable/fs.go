package durable

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// FS is every step that a durable operation makes on directories and names.
// An implementation must allow concurrent use. One that lets several SyncDir
// calls of the same directory share an fsync keeps every promise made here.
type FS interface {
	// CreateTemp makes a new file in dir, as os.CreateTemp does: O_EXCL, mode
	// 0600, a random string in the place of the pattern's '*'.
	CreateTemp(dir, pattern string) (File, error)
	Rename(from, to string) error
	Remove(path string) error
	Mkdir(path string, mode fs.FileMode) error
	// SyncDir returns once all earlier changes of names in dir are durable.
	SyncDir(dir string) error
}

// File is a new file being written; *os.File is one.
type File interface {
	// Name is the path of the file.
	Name() string
	Chmod(mode fs.FileMode) error
	Write(data []byte) (int, error)
	Sync() error
	Close() error
}

type osFS struct{}

// CreateTemp implements FS.
func (osFS) CreateTemp(dir, pattern string) (File, error) {
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return nil, err // not f: a nil *os.File in a File is not nil
	}
	return f, nil
}

// Rename implements FS.
func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

// Mkdir implements FS.
func (osFS) Mkdir(path string, mode fs.FileMode) error { return os.Mkdir(path, mode) }

// SyncDir implements FS. O_DIRECTORY: a FIFO in its place must not block.
func (osFS) SyncDir(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Remove implements FS.
func (osFS) Remove(path string) error { return os.Remove(path) }
