//go:build !unit

package handover

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAGuestMovesThroughBothAgents(t *testing.T) {
	// Given: a guest whose directory says 77 s, its VMI 60.
	w := given(t)
	v := w.guarded(node.Spec{GuestAgent: true, Grace: "77"})
	v.watchForTwo()
	for _, to := range []*host{w.b, w.a, w.b} {
		// When it is moved, there and back,
		// then it goes on there and has ended here.
		v.mustMove(to, `"bandwidthMiB":200`)
	}
	// Its VMI's grace period counts, and its deletion.
	node.Eventually(w, soon, func() bool { s, _ := w.b.agent.StatusOf(w, v.Guest); return s.GracePeriodSeconds == 60 }, "the VMI's grace period does not count")
	v.ends()
}
