package shim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// movedTimeout is how long the agent may take to say that a guest has moved, after the end of
// the process that had sent it. It may have to be started again for that.
const movedTimeout = 10 * time.Second

// stoppedTimeout is how long it may take to say how a shutdown has ended, after the process.
const stoppedTimeout = 2 * time.Second

// listen wakes the shim when a file that it waits for may have changed. That is only a
// hint: the next look finds a change without an event, even if the shim's user has no inotify
// instance left. A directory may have been replaced, so listen is called again.
func (s *shim) listen() (err error) {
	var files []string
	if s.readsStatus() {
		files = append(files, filepath.Join(s.config.Dir, signals.FileStatus))
	}
	if s.waiting != nil {
		files = append(files, s.config.PIDFile)
	}
	if s.changes == nil && files != nil {
		s.changes, err = fsnotify.NewWatcher()
	}
	for i := 0; i < len(files) && err == nil; i++ {
		dir := filepath.Dir(files[i])
		_ = s.changes.Add(filepath.Dir(dir)) // only there it is seen that dir is another one
		err = s.changes.Add(dir)
	}
	if s.deaf = err != nil; s.deaf {
		return fmt.Errorf("looking for changes every %v alone: inotify: %w", s.interval(), err)
	}
	return nil
}

// interval returns when to look again without a hint.
func (s *shim) interval() time.Duration {
	switch {
	case s.signal != "" && !s.told, s.waiting != nil && s.waiting.last != "":
		return pollInterval
	case !s.complete, s.deaf && (s.changes != nil || s.asker.asks() || s.signal != ""):
		return unheardInterval
	case s.deaf: // nobody waits for it, and its user may have many
		return 10 * unheardInterval
	default:
		return restInterval
	}
}

// look does what can be done by now.
func (s *shim) look() (status int, ended bool) {
	if !s.complete || s.waiting != nil {
		s.tell()
	}
	if s.waiting != nil {
		if status, ended = s.lookForPID(); ended {
			return status, ended
		}
	}
	if s.readsStatus() {
		return s.lookAtStatus()
	}
	return 0, false
}

// readsStatus reports whether the shim acts upon status.json. With a command of ours
// status.json cannot say that the VM is at another node: the command is the VM, and its
// end counts.
func (s *shim) readsStatus() bool {
	return s.leaving() || s.complete && (s.asker.asks() || len(s.config.Command) == 0)
}

// leaving reports whether the shim was signalled and has no VM process to wait for.
func (s *shim) leaving() bool { return s.signal != "" && s.waiting != nil }

// staysOff reports whether the VM of our command was shut down for good, or has left. Its
// pod's restartPolicy has started its container again.
func (s *shim) staysOff() bool {
	end, err := s.sender.Former()
	s.try(err)
	off := len(s.config.Command) > 0 && (end.Outcome == grace.Migrated || end.Cause == grace.VMIDeleted || end.Cause == grace.NodeFenced)
	if off {
		s.log.Printf("the VM has ended for good (%s %s): it is not started again", end.Outcome, end.Cause)
	}
	return off
}

// lookAtStatus acts upon status.json: a request to ask the guest, or the end of a VM. That
// end counts if the shim has no process, or if the VM goes on at another node and the
// process is not the VM's any more.
func (s *shim) lookAtStatus() (status int, ended bool) {
	if s.asker.asks() && !s.leaving() {
		s.try(s.asker.look())
		s.try(s.mover.look())
		return 0, false
	}
	end, err := s.sender.Ended()
	s.try(err)
	saved := end.End == grace.EndSaved && end.Cause == "" && s.waiting != nil && s.signal == ""
	if end != s.end {
		s.end, s.stood = end, false
		s.back.Reset(returnTimeout)
		if saved {
			s.log.Print("the VM was saved: waiting for its return")
		}
	}
	switch answered := s.signal != "" && end.Cause != ""; {
	case end.Outcome == grace.Migrated:
		s.log.Print("the agent says that the VM has moved to another node")
		return 0, true
	case !end.Stopped, s.waiting == nil, saved, !answered && !s.stood:
		return 0, false
	}
	s.log.Printf("the agent says that the VM is stopped: %s", cmp.Or(end.Message, string(end.Outcome)))
	if end.Outcome == grace.Lost && end.End.Crashed() {
		status = 1
	}
	return status, true
}

// await returns what status.json says of the VM's end, for which it waits.
func (s *shim) await(timeout time.Duration) signals.End {
	again, over := time.NewTicker(pollInterval), time.NewTimer(timeout)
	defer again.Stop()
	defer over.Stop()
	for {
		end, err := s.sender.Ended()
		s.try(err)
		if end.Stopped {
			return end
		}
		select {
		case <-again.C:
		case <-over.C:
			return end
		}
	}
}

// tellForced says in the container's termination message that the guest was destroyed at its
// deadline: its process may have ended with 0.
func (s *shim) tellForced() error {
	end, err := s.sender.Ended()
	if s.sender.ShutsDown() {
		end = s.await(stoppedTimeout)
	}
	if err != nil || end.Outcome != grace.Forced {
		return err //nolint:wrapcheck // it says what was tried
	}
	f, err := os.OpenFile(s.config.TerminationLog, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no container of kubelet's
	}
	if err != nil {
		return fmt.Errorf("termination message: %w", err)
	}
	_, err = f.WriteString(launcherpod.EndForced)
	return errors.Join(err, f.Close())
}
