package signals

import (
	"fmt"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// The shim's end of requests. A launcher whose VM process is in its own pod asks the
// guest itself when status.json says so, and answers in vm.json.

// Requested is the last request of the agent to this launcher, 0 for none, and how the guest is to
// be asked.
func (s *Sender) Requested() (n uint64, by grace.Mode, err error) {
	now, _, err := s.status()
	if now.Request > s.before.Request {
		return now.Request, now.RequestBy, err
	}
	return 0, "", err
}

// Tell changes what vm.json says of the VM process and of the last request. The file and
// its lock stay the same, because the agent knows the launcher by them.
func (s *Sender) Tell(pid int, requested uint64, result string) error {
	s.vm.PID, s.vm.Requested, s.vm.Result = pid, requested, result
	return s.rewrite()
}

// TellGuest changes what vm.json says of the guest: GuestOff, GuestPanicked, or "".
func (s *Sender) TellGuest(guest string) error {
	s.vm.Guest = guest
	return s.rewrite()
}

func (s *Sender) rewrite() error {
	if s.lock == nil {
		return nil // Register will write it
	}
	if _, err := s.lock.WriteAt(s.content(), 0); err != nil {
		return fmt.Errorf("write %s: %w", FileVM, err)
	}
	return nil
}

// content returns vm.json. A file that is rewritten always has the same length.
func (s *Sender) content() []byte {
	content := s.vm.Encode()
	if s.vm.Asks == "" {
		return content
	}
	return padTo(content, askingSize)
}
