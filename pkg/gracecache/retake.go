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
	s.lost = true
	if err := s.disk.MkdirAll(s.dir, 0o700); err != nil {
		return false, notWritable(s.dir, err)
	}
	if ours {
		s.lost = false
		return true, nil
	}
	f, err := lock(s.dir, os.O_CREATE)
	if errors.Is(err, ErrLocked) {
		return false, err
	}
	if err != nil {
		return false, notWritable(s.dir, err)
	}
	old := s.lock
	s.lock, s.lost = f, false
	return true, errors.Join(sign(f), unlock(old))
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
