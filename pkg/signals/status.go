package signals

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// statusFor returns what status.json says of a VM; zero if it names another one or is
// invalid.
func statusFor(uid string, content []byte) statusFile {
	var f statusFile
	_ = json.Unmarshal(content, &f) // leaves out what is of another type, as a later version's may be
	if f.UID != uid {
		return statusFile{}
	}
	return f
}

func (f statusFile) stopped() bool { return f.Phase == grace.Stopped }

// status returns the agent's status for this VM; zero without a directory or a file.
func (s *Sender) status() (statusFile, fs.FileInfo, error) {
	if s.root == nil {
		return statusFile{}, nil, nil
	}
	content, info, err := ReadFile(s.root, FileStatus)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return statusFile{}, nil, err
	}
	return statusFor(s.vm.UID, content), info, nil
}

// ended returns the agent's report of this VM's end; zero if an earlier launcher got it.
// Then the file was there before, or it reports the same end.
func (s *Sender) ended() (statusFile, error) {
	now, file, err := s.status()
	if !now.stopped() {
		return statusFile{}, err
	}
	sameFile := s.beforeFile != nil && os.SameFile(s.beforeFile, file) && s.beforeFile.ModTime().Equal(file.ModTime())
	sameEnd := s.before.stopped() && now.EndedAt != "" && s.before.EndedAt == now.EndedAt
	if sameFile || sameEnd {
		return statusFile{}, err
	}
	return now, err
}

// Stopped reports whether the agent has said that this VM is gone. Without a directory or
// a status it has not. A report to an earlier launcher does not count: the next VM is
// still to come.
func (s *Sender) Stopped() (bool, error) {
	now, err := s.ended()
	return now.stopped(), err
}

// Moved reports whether the agent has said that this VM is on another node. A report to
// an earlier launcher does not count: the VM has come back.
func (s *Sender) Moved() (bool, error) {
	now, err := s.ended()
	return now.stopped() && now.Outcome == grace.Migrated, err
}
