// Package durable writes and removes files so that they survive a power loss.
//
// A rename is atomic but not durable: the new name lives in the directory, which must be
// fsynced too. So a write is always the same sequence: a new temporary file, write,
// fsync, close, rename over the target, fsync of the directory. A reader of the target
// sees the old or the new content, whole.
//
// Every step goes through an [FS], which a test may replace to record the
// steps or to let one fail.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// tempPrefix begins the name of every temporary file. A process that is
// killed leaves at most one per call; see IsTemp.
const tempPrefix = ".tmp-"

// Disk is a file system with durable operations. It holds no state: all methods may be
// used at the same time, and block for as long as the disk does. The caller has to check
// file names: none may lead out of its directory.
type Disk struct{ FS FS }

// Real is the node's own file system.
func Real() Disk { return Disk{FS: osFS{}} }

// IsTemp reports whether name is a temporary file. If nobody writes in its directory, it
// is a leftover of a killed process.
func IsTemp(name string) bool { return strings.HasPrefix(name, tempPrefix) }

// WriteFile gives dir/name the content data and exactly the permissions mode (no umask).
// When it returns nil the content is on the disk. After an error the old content stands,
// whole, unless only the last step failed: then the new content is there but a power loss
// may undo it. A retry is always safe. It writes a new file: after a failed fsync the
// kernel counts the lost pages of the old one as written (fsync(2)).
func (d Disk) WriteFile(dir, name string, data []byte, mode fs.FileMode) error {
	path := filepath.Join(dir, name)
	temp, err := d.writeTemp(dir, data, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := d.FS.Rename(temp, path); err != nil {
		err = fmt.Errorf("write %s: rename into place: %w", path, err)
		return errors.Join(err, d.discard(temp))
	}
	if err := d.FS.SyncDir(dir); err != nil {
		return fmt.Errorf("write %s: fsync its directory: %w", path, err)
	}
	return nil
}

// Remove deletes the files with these names in dir. When it returns nil they are gone for
// good. A missing file is no error. Its absence is made durable all the same: an earlier
// Remove may have failed half way.
func (d Disk) Remove(dir string, names ...string) error {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := d.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: unlink: %w", path, err)
		}
	}
	if err := d.FS.SyncDir(dir); err != nil {
		return fmt.Errorf("remove %s: fsync its directory: %w", filepath.Join(dir, strings.Join(names, ", ")), err)
	}
	return nil
}

// Rename gives dir/from the name dir/to, durably. It replaces dir/to.
func (d Disk) Rename(dir, from, to string) error {
	path, target := filepath.Join(dir, from), filepath.Join(dir, to)
	if err := d.FS.Rename(path, target); err != nil {
		return fmt.Errorf("rename %s: %w", path, err)
	}
	if err := d.FS.SyncDir(dir); err != nil {
		return fmt.Errorf("rename %s to %s: fsync its directory: %w", path, target, err)
	}
	return nil
}

// MkdirAll creates dir and its missing parents, durably. A directory that exists keeps
// its mode.
func (d Disk) MkdirAll(dir string, mode fs.FileMode) error {
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	err := d.FS.Mkdir(dir, mode)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := d.MkdirAll(parent, mode); err != nil {
			return err
		}
		err = d.FS.Mkdir(dir, mode)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create directory %s: %w", dir, err)
	}
	// Also if it existed: its creator may have been killed before this.
	if err := d.FS.SyncDir(parent); err != nil {
		return fmt.Errorf("create directory %s: fsync its parent: %w", dir, err)
	}
	return nil
}

// writeTemp writes data to a new file, syncs and closes it, and returns its path.
func (d Disk) writeTemp(dir string, data []byte, mode fs.FileMode) (string, error) {
	f, err := d.FS.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return "", fmt.Errorf("create temporary file: %w", err)
	}
	if err := errors.Join(fill(f, data, mode), step("close", f.Close())); err != nil {
		return "", errors.Join(err, d.discard(f.Name()))
	}
	return f.Name(), nil
}

func fill(f File, data []byte, mode fs.FileMode) error {
	if err := f.Chmod(mode); err != nil {
		return step("set mode", err)
	}
	if _, err := f.Write(data); err != nil {
		return step("write data", err)
	}
	return step("fsync", f.Sync())
}

func (d Disk) discard(temp string) error {
	return step("remove temporary file", d.FS.Remove(temp))
}

func step(tried string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", tried, err)
}
