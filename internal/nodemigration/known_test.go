package nodemigration

import (
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// listed is a watch that has not seen everything yet.
type listed struct {
	host

	all      []*Migration
	complete bool
}

func (l *listed) Migrations() ([]*Migration, bool) { return l.all, l.complete }

// waiting are who is told that something has changed.
type waiting struct {
	host

	names []string
}

func (v *waiting) Changed(_, name string) { v.names = append(v.names, name) }

// Otherwise a VM that migrates would be one that does not, for a moment after the
// agent's start.
func TestNoVMIsSaidNotToMigrateBeforeEachMigrationHasItsSide(t *testing.T) {
	l, vms := &listed{}, &waiting{}
	n := New(Config{Node: "a", Cluster: l, VMs: vms})
	is := func(when string, want grace.Migration) {
		t.Helper()
		if got, _ := n.Standing("ns_vm"); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	l.complete = true
	is("listed, not taken up", grace.MigrationUnknown)
	l.complete = false
	n.takeUp(t.Context())
	is("taken up, not all of them", grace.MigrationUnknown)
	if len(vms.names) != 0 {
		t.Errorf("told too early: %q", vms.names)
	}
	l.complete = true
	n.takeUp(t.Context())
	n.takeUp(t.Context())
	is("all taken up", grace.MigrationNone)
	if len(vms.names) != 1 || vms.names[0] != "" {
		t.Errorf("told: %q, want all VMs once", vms.names)
	}
}
