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

// End is what status.json says of a VM's end, zero before it. At is when that was.
type End struct {
	Stopped     bool
	Cause       grace.Cause
	Outcome     grace.Outcome
	End         grace.End
	At, Message string
}

func (f statusFile) end() End {
	if !f.stopped() {
		return End{}
	}
	return End{Stopped: true, Cause: f.Cause, Outcome: f.Outcome, End: f.End, At: f.EndedAt, Message: f.Message}
}

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

// Ended returns the agent's report of this VM's end; zero if an earlier launcher got it.
// Then the file was there before, or it reports the same end.
func (s *Sender) Ended() (End, error) {
	now, file, err := s.status()
	if !now.stopped() {
		return End{}, err
	}
	sameFile := s.beforeFile != nil && os.SameFile(s.beforeFile, file) && s.beforeFile.ModTime().Equal(file.ModTime())
	sameEnd := s.before.stopped() && now.EndedAt != "" && s.before.EndedAt == now.EndedAt
	if sameFile || sameEnd {
		return End{}, err
	}
	return now.end(), err
}

// ShutsDown reports whether the agent is in the middle of this VM's shutdown.
func (s *Sender) ShutsDown() bool {
	now, _, _ := s.status() // what cannot be read is no shutdown
	return now.Phase == grace.ShuttingDown || now.Phase == grace.Destroying
}

// Former returns the end that an earlier launcher of this VM was told. It finds the
// directory, as Register does.
func (s *Sender) Former() (End, error) {
	err := s.open()
	return s.before.end(), err
}
