package launcher

import (
	"os"

	"golang.org/x/sys/unix"
)

// hearOfMove has the shim look at status.json whenever it may have changed, from
// now on: a VM that goes on at another node leaves no process here whose end would
// be seen, or one that is not the VM's. A command of ours is the VM, and its end
// counts.
func (s *shim) hearOfMove() {
	if s.status != nil || len(s.config.Command) > 0 {
		return
	}
	s.status = newHints()
	// Not the directories above: one that is replaced has no status of ours.
	s.try(s.status.listen(s.config.Dir, dnCreate|dnRename|dnMultishot))
	select {
	case s.status.C <- unix.SIGIO: // it may be there already
	default:
	}
}

// statusHint tells that status.json may have changed.
func (s *shim) statusHint() <-chan os.Signal {
	if s.status == nil {
		return nil
	}
	return s.status.C
}

// moved tells whether the agent says that the VM is on another node now.
func (s *shim) moved() bool {
	moved, err := s.sender.Moved()
	s.try(err)
	if moved {
		s.log.Print("the agent says that the VM has moved to another node")
	}
	return moved
}
