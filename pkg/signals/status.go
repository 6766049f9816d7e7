package signals

import (
	"errors"
	"io/fs"
	"strconv"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// statusMembers is what the shim reads of status.json: its members as they stand
// there, none where it names another VM or is not understood.
type statusMembers map[string]string

func statusFor(uid string, content []byte) statusMembers {
	m := statusMembers(Members(string(content)))
	if m["uid"] != quote(uid) {
		return nil
	}
	return m
}

func (m statusMembers) stopped() bool { return m["phase"] == quote(string(grace.Stopped)) }

func (m statusMembers) moved() bool {
	return m.stopped() && m["outcome"] == quote(string(grace.Migrated))
}

// request is 0 for none.
func (m statusMembers) request() uint64 {
	n, err := strconv.ParseUint(m["request"], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// status is what the agent has told this VM: nothing without a directory or a file.
func (s *Sender) status() (statusMembers, error) {
	if s.root == nil {
		return nil, nil
	}
	content, _, err := ReadFile(s.root, FileStatus)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	return statusFor(s.vm.UID, content), nil
}

// Stopped reports whether the agent has said that this VM is gone. Without a
// directory or a status it has not.
func (s *Sender) Stopped() (bool, error) {
	now, err := s.status()
	return now.stopped(), err
}

// Moved reports whether the agent has said that this VM is on another node. What an
// earlier launcher was told does not count: the VM has come back.
func (s *Sender) Moved() (bool, error) {
	now, err := s.status()
	old := s.before.moved() && s.before["endedAt"] == now["endedAt"]
	return now.moved() && !old, err
}
