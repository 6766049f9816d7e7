package gracecache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLost is the error of writes while it is not sure that the directory is
// this process's and will be there after a power loss.
var ErrLost = errors.New("it was removed, replaced or not made durable")

// Retake takes the state directory again where somebody has removed it,
// replaced it or mounted over it; otherwise it only looks. After taken, what
// was put before is not there: the caller has to put it again. Where it cannot
// be taken (ErrLocked, ErrNotWritable) every write fails with ErrLost until it
// can: it may be another agent's by now. Another error says nothing about the
// directory. Not for concurrent use with itself.
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

// take makes the directory where it is missing, and durable, and locks it where no
// lock of it is held. Until then all writes are refused. The caller is alone.
func (s *Store) take(held *os.File) error {
	s.lost = true
	// This may fail where the directory is there: EIO of an fsync.
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
		_ = s.lock.Close() // of a directory that is not there any more, if any
		s.lock = f
	}
	s.lost = false
	if err := sign(s.lock); err != nil {
		return notWritable(s.dir, err)
	}
	return nil
}

// isOurs reports whether the lock file that is there is the one that is held,
// and whether writes are refused.
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
