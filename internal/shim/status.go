package shim

import (
	"path/filepath"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// lookAtStatus takes what the agent says in status.json, and has that looked at
// again whenever it may have changed: a request to ask the guest, or that the VM
// goes on at another node. That leaves no process here whose end would be seen, or
// one that is not the VM's. A command of ours is the VM, and its end counts.
func (s *shim) lookAtStatus() (ended bool) {
	if s.asker == nil && len(s.config.Command) > 0 {
		return false
	}
	err := s.status.arm(filepath.Join(s.config.Dir, signals.FileStatus)) // before the file is read
	s.deaf = err != nil
	s.try(err)
	if s.asker != nil {
		s.try(s.asker.look())
		return false
	}
	moved, err := s.sender.Moved()
	s.try(err)
	if moved {
		s.log.Print("the agent says that the VM has moved to another node")
	}
	return moved
}

// ownDirectory is the way to a status.json that says whether the VM has moved: a
// directory that is replaced has no status of ours, and above it another VM's
// directory may come at any time.
func ownDirectory(path string) (dirs []string, written bool) {
	return []string{filepath.Dir(path)}, false
}
