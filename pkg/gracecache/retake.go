package gracecache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLost is the error of writes while the directory may not be this process's, or not
// survive a power loss.
var ErrLost = errors.New("it was removed, replaced or not made durable")

// Retake takes the state directory again if somebody has removed it, replaced it or
// mounted over it; otherwise it only looks. If taken, earlier records are missing: the
// caller has to put them again. If it cannot be taken (ErrLocked, ErrNotWritable), writes
// fail with ErrLost until it can: another agent may have it. Another error says nothing
// about the directory. Only one call at a time is allowed.
func (s *Store) Retake() (taken bool, err error) {
	ours, lost, err := s.isOurs()
	if err != nil || ours && !lost {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, s.closedError("retake")
	}
	held := s.lock
	if !ours {
		held = nil
	}
	err = s.take(held)
	return !s.lost, err
}

// take makes a missing directory, durably, and locks it if held is nil. Until then all
// writes are refused. The caller is alone.
func (s *Store) take(held *os.File) error {
	s.lost = true
	// An fsync may fail (EIO) although the directory is there.
	if err := s.disk.MkdirAll(s.dir, 0o700); err != nil {
		return notWritable(s.dir, err)
	}
	if held == nil {
		f, err := lock(s.dir, os.O_CREATE)
		if errors.Is(err, ErrLocked) {
			return err
		}
		if err != nil {
			return notWritable(s.dir, err)
		}
		_ = s.lock.Close() // its directory is gone, if there was one
		s.lock = f
	}
	s.lost = false
	if err := sign(s.lock); err != nil {
		return notWritable(s.dir, err)
	}
	return nil
}

// isOurs reports whether the existing lock file is the one that is held, and whether
// writes are refused.
func (s *Store) isOurs() (ours, lost bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return false, false, s.closedError("look")
	}
	if s.lock == nil {
		return false, s.lost, nil
	}
	there, err := os.Lstat(filepath.Join(s.dir, lockName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, s.lost, nil
	}
	if err != nil {
		return false, s.lost, fmt.Errorf("look at the state directory: %w", err)
	}
	held, err := s.lock.Stat()
	if err != nil {
		return false, s.lost, fmt.Errorf("look at the lock of state directory %s: %w", s.dir, err)
	}
	return os.SameFile(there, held), s.lost, nil
}
