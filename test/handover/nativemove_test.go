//go:build nightly && !unit

package handover

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestLibvirtMovesAGuestByItself(t *testing.T) {
	// Given a guest.
	w, _ := givenNative(t)
	v := w.guarded(node.Spec{GuestAgent: true})
	v.watchForTwo()
	for _, to := range []*host{w.b, w.a} {
		// When it is moved, there and back,
		// then it runs on the target alone, and none of its data has passed the agents.
		v.mustMove(to, `"bandwidthMiB":200`)
		if transport := w.get("vmim", v.migration, "{.status.migrationState.transport}"); transport != "Native" || to.agent.Said("the guest's connection has ended") > 0 {
			t.Errorf("to %s: transport %q", to.name, transport)
		}
	}
	// When both agents are killed during a migration, then the guest moves all the same.
	v.schedule(w.b, `"bandwidthMiB":16`)
	v.waitSent()
	w.a.restart(w)
	w.b.restart(w)
	if !v.decided() {
		t.Fatalf("it was not moved by agents that were killed meanwhile: %s", v.whyFailed())
	}
	// When the VMI is deleted during a migration, then the guest is shut down where it is.
	v.schedule(w.a, `"bandwidthMiB":8`)
	v.waitSent()
	v.ends()
	node.Eventually(w, soon, func() bool { return v.states() == "Running/Absent" && v.there.state(v.Domain) == "" }, "something is left of it")
}
