//go:build !unit

package handover

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAGuestMovesThroughBothAgents(t *testing.T) {
	// Given: a guest that writes much memory, and counts on a disk that both nodes have.
	// Its directory says 77 s, its VMI 60.
	w := given(t)
	v := w.counting(node.Spec{GuestAgent: true, Grace: "77", Behaviour: "busy=8 disk=count"})
	moves := 3
	if long() {
		moves = 20 // there and back ten times
	}
	for range moves {
		to := w.other(v.here.host)
		// When it is moved, there and back,
		// then it goes on there and has ended here.
		v.mustMove(to, `"bandwidthMiB":200`)
		v.counts()
	}
	// Its VMI's grace period counts, from the first moment on, and its deletion.
	if w.b.agent.Said("gracePeriod=1m0s source=vmi") == 0 || w.b.agent.Said("source=domain") > 0 {
		t.Error("where it arrives another grace period counts at first")
	}
	node.Eventually(w, soon, func() bool { s, _ := v.here.agent.StatusOf(w, v.Guest); return s.GracePeriodSeconds == 60 }, "the VMI's grace period does not count")
	v.ends()
}
