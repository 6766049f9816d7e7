//go:build !unit

package handover

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAGuestMovesThroughBothAgents(t *testing.T) { ofBothKinds(t, started, movesThroughBothAgents) }

func movesThroughBothAgents(w world) {
	t := w.TB
	// Given a guest that writes much memory and counts on a disk of both nodes. Its
	// domain's metadata give it a grace period of 77 s, its VMI one of 60 s.
	v := w.counting(node.Spec{GuestAgent: true, Grace: "77", Behaviour: "busy=8 disk=count"})
	moves := 3
	if long() {
		moves = 20 // there and back ten times
	}
	for range moves {
		to := w.other(v.here.host)
		// When it is moved, there and back,
		// then it runs on the target alone.
		v.mustMove(to, `"bandwidthMiB":200`)
		v.counts()
	}
	// Then its VMI's grace period counts on the target from the first moment on. When the
	// VMI is deleted, then the guest is shut down.
	if w.b.agent.Said("gracePeriod=1m0s source=vmi") == 0 || w.b.agent.Said("source=domain") > 0 {
		t.Error("where it arrives another grace period counts at first")
	}
	node.Eventually(w, soon, func() bool { s, _ := v.here.agent.StatusOf(w, v.Guest); return s.GracePeriodSeconds == 60 }, "the VMI's grace period does not count")
	v.ends()
}
