package signals

import (
	"errors"
	"io/fs"
	"os"
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

// triggers reports whether a trigger names this VM. One that names none, as a person's, does not.
func triggers(content []byte, uid string) bool { return Members(string(content))["uid"] == quote(uid) }

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
func (s *Sender) status() (statusMembers, fs.FileInfo, error) {
	if s.root == nil {
		return nil, nil, nil
	}
	content, info, err := ReadFile(s.root, FileStatus)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, nil, err
	}
	return statusFor(s.vm.UID, content), info, nil
}

// ended is what the agent has told of this VM's end, nothing where that was told to an
// earlier launcher: the file was there before, or it tells of the same end.
func (s *Sender) ended() (statusMembers, error) {
	now, file, err := s.status()
	if !now.stopped() {
		return nil, err
	}
	sameFile := s.beforeFile != nil && os.SameFile(s.beforeFile, file) && s.beforeFile.ModTime().Equal(file.ModTime())
	sameEnd := s.before.stopped() && now["endedAt"] != "" && s.before["endedAt"] == now["endedAt"]
	if sameFile || sameEnd {
		return nil, err
	}
	return now, err
}

// Stopped reports whether the agent has said that this VM is gone. Without a
// directory or a status it has not. What an earlier launcher was told does not count:
// the next VM comes yet.
func (s *Sender) Stopped() (bool, error) {
	now, err := s.ended()
	return now.stopped(), err
}

// Moved reports whether the agent has said that this VM is on another node. What an
// earlier launcher was told does not count: the VM has come back.
func (s *Sender) Moved() (bool, error) {
	now, err := s.ended()
	return now.moved(), err
}
