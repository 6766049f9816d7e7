package shim

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// says writes status.json as the agent does.
func says(t *testing.T, dir string, status grace.Status) {
	t.Helper()
	path := filepath.Join(dir, signals.FileStatus)
	kit.Must(t, os.WriteFile(path+".x", signals.EncodeStatus(status), 0o600))
	kit.Must(t, os.Rename(path+".x", path))
}

// looks makes the shim read status.json. Every event that wakes the shim does that.
func (s *shimProcess) looks() {
	s.t.Helper()
	s.signal(syscall.SIGCHLD)
	s.staysFor(300 * time.Millisecond)
}

func TestAShimWhoseVMHasMovedEnds(t *testing.T) {
	pid, _ := vm(t)
	written := filepath.Join(t.TempDir(), "pid")
	kit.Must(t, os.WriteFile(written, []byte(pid+"\n"), 0o600))
	moved := func(uid string, at time.Time) grace.Status {
		return grace.Status{UID: uid, Phase: grace.Stopped, Outcome: grace.Migrated, EndedAt: at}
	}
	for name, args := range map[string][]string{
		"no process yet":                  {"--pid-file", filepath.Join(t.TempDir(), "never")},
		"a process that stays":            {"--pid", pid},
		"a process of a file, that stays": {"--pid-file", written},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Given a VM that was on this node before, moved to another node and has come
			// back.
			dir, was := t.TempDir(), time.Now()
			says(t, dir, moved("u-1", was))
			s := started(t, dir, args...)
			s.looks()
			// When status.json says something else, then the shim goes on.
			for _, other := range []grace.Status{
				{UID: "u-1", Phase: grace.Running}, moved("u-2", was.Add(time.Second)),
				{UID: "u-1", Phase: grace.Stopped, Outcome: grace.Forced},
			} {
				says(t, dir, other)
				s.looks()
			}
			// When status.json says that the VM has moved, then the shim ends without a
			// trigger.
			says(t, dir, moved("u-1", was.Add(time.Minute)))
			s.wantExit(0)
			if s.there(signals.FileVM) || s.there(signals.FileTrigger) {
				t.Error("it left vm.json or a trigger")
			}
			if !strings.Contains(s.stderr.String(), "has moved to another node") {
				t.Errorf("it said %q", s.stderr.String())
			}
		})
	}
}

// Given a shim whose command is the VM. When status.json says that the VM has moved, then
// the shim goes on, whatever happens to a domain of that name.
func TestAShimWithACommandEndsWithIt(t *testing.T) {
	dir := t.TempDir()
	s := started(t, dir, "--", "sleep", "300")
	says(t, dir, grace.Status{UID: "u-1", Phase: grace.Stopped, Outcome: grace.Migrated, EndedAt: time.Now()})
	s.looks()
}
