package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

const homePrefix = "vmgrace-cluster-"

// home is the directory of one cluster. Its lock is held as long as the process that made
// it lives. An unlocked directory is a leftover.
type home struct {
	dir  string
	lock *os.File
}

// newHome removes what dead processes have left and makes a home.
func newHome() (*home, error) {
	tmp, err := os.Open(os.TempDir())
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	defer tmp.Close()
	// Another process would take a new home for a leftover before it is locked. The lock on
	// the temporary directory prevents that.
	if err := unix.Flock(int(tmp.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", tmp.Name(), err)
	}
	if err := clearLeftovers(tmp.Name()); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(tmp.Name(), homePrefix)
	if err != nil {
		return nil, fmt.Errorf("cluster directory: %w", err)
	}
	lock, err := tryLock(dir)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return &home{dir: dir, lock: lock}, nil
}

func tryLock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cluster directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

func clearLeftovers(tmp string) error {
	dirs, err := filepath.Glob(filepath.Join(tmp, homePrefix+"*"))
	if err != nil {
		return fmt.Errorf("leftovers in %s: %w", tmp, err)
	}
	for _, dir := range dirs {
		lock, err := tryLock(dir)
		if err != nil {
			continue // it is in use, or belongs to another user
		}
		if err := (&home{dir: dir, lock: lock}).remove(); err != nil {
			return fmt.Errorf("leftovers of a process that was killed: %w", err)
		}
	}
	return nil
}

// name returns the name of this cluster in what all clusters share: cgroups.
func (h *home) name() string { return filepath.Base(h.dir) }

func (h *home) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

// write writes a file in the home and makes its directories.
func (h *home) write(name string, text []byte) (string, error) {
	path := h.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("cluster directory: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("cluster directory: %w", err)
	}
	return path, nil
}

// remove removes the cgroups and the directory. It tries for 20 s, because processes that
// were just killed may not have ended yet.
func (h *home) remove() error {
	defer h.lock.Close()
	var err error
	gone := func() bool {
		err = errors.Join(removeCgroups(h.name()), os.RemoveAll(h.dir))
		return err == nil
	}
	if !node.Poll(context.Background(), 20*time.Second, gone) {
		return err
	}
	return nil
}

// hasLine reports whether a file has that line.
func hasLine(path, line string) bool {
	b, _ := os.ReadFile(path) // a missing file does not have it
	return slices.Contains(strings.Split(string(b), "\n"), line)
}

// readText returns a file's text without space around it, or "" where it cannot be read.
func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
