package crash

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/test/node"
)

// scope is a part of a test that can end before the test, with all that it has started.
type scope struct {
	*testing.T
	undo []func()
}

func newScope(t *testing.T) *scope {
	t.Helper()
	s := &scope{T: t}
	t.Cleanup(s.end)
	return s
}

// Cleanup implements node.T.
func (s *scope) Cleanup(f func()) { s.undo = append(s.undo, f) }

func (s *scope) end() {
	for len(s.undo) > 0 {
		last := s.undo[len(s.undo)-1]
		s.undo = s.undo[:len(s.undo)-1]
		last()
	}
}

const ms = time.Millisecond

// soon bounds the wait for what has no promised time.
const soon = 30 * time.Second

// guarded reports whether the record names the VM and its shim, and status.json says
// Running.
func guarded(t *testing.T, v *node.VM) bool {
	t.Helper()
	r, there := recorded(t, v.Agent)[v.Domain]
	return there && r.UID == v.UID && r.Launcher.PID != 0 && v.Launcher.Status().Phase == "Running"
}

func waitGuarded(t *testing.T, v *node.VM) {
	t.Helper()
	node.Eventually(t, soon, func() bool { return guarded(t, v) && v.Launcher.Status().Phase == "Running" }, "%s is not guarded", v.Domain)
}

// recorded reads the grace cache from the disk, whether or not the agent runs.
func recorded(t *testing.T, a *node.Agent) map[string]grace.Record {
	t.Helper()
	loaded, err := gracecache.Read(a.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range loaded.Quarantined {
		t.Errorf("a record cannot be used: %s: %v", q.Name, q.Reason)
	}
	records := make(map[string]grace.Record, len(loaded.Records))
	for _, r := range loaded.Records {
		records[r.Domain()] = r
	}
	return records
}
