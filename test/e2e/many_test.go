//go:build nightly

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given ten VMs on a node that only two may leave at a time. When the node is tainted, then
// some are moved, and each that is not moved within the allowance has its whole grace
// period then. Otherwise the guests that wait for the others would lose their graceful
// shutdown.
func TestTenVMsOfATaintedNodeAreMovedOrHaveTheirGracePeriod(t *testing.T) {
	const (
		grace     = 5 * time.Second
		allowance = 10 * time.Second
		taint     = "vmgrace.dev/many"
	)
	w := given(t)
	w.controller()
	w.holding(allowance.String())
	all := []*vm{w.holdable(plan{grace: int(grace.Seconds())}, fmt.Sprint(allowance.Seconds()))}
	plans := make([]plan, 9)
	for i := range plans {
		plans[i] = plan{grace: int(grace.Seconds()), strategy: "LiveMigrate"}
		if i%2 == 0 {
			plans[i].Spec = deaf()
		}
	}
	all = append(all, w.vms(plans...)...)
	w.liveMigratable(all[1:]...)

	// When their node is tainted
	w.afterwards("taint", "node", w.a.Name, taint+"-")
	at := time.Now()
	w.Kubectl(t, "taint", "node", w.a.Name, taint+"=1:NoExecute")

	// Then each leaves the node or ends there, and never are more than two sent at once.
	last, signalled := map[*vm]node.Status{}, map[*vm]time.Time{}
	node.Eventually(t, allowance+grace+soon, func() bool {
		// A held shutdown that ends earlier may overtake one that has its target pod already.
		if sent, _ := w.leaving(); sent > 2 {
			t.Errorf("%d guests are sent at once", sent)
		}
		for _, v := range all {
			switch s := v.launcherStatus(); {
			case s.Phase != "":
				last[v] = s
				if s.Phase == "Held" {
					signalled[v] = v.parse(s.StartedAt)
				}
			case last[v].Phase != "Stopped": // its pod is gone, and status.json with it
				last[v] = node.Status{Phase: "Stopped"}
			}
		}
		return !slices.ContainsFunc(all, func(v *vm) bool { return last[v].Phase != "Stopped" })
	}, "some have not ended on their node: %v", last)
	w.step("all have left %.1f s after the taint", time.Since(at).Seconds())

	moved := 0
	for _, v := range all {
		switch s := last[v]; s.Outcome {
		case "Migrated":
			moved++
			v.moved(w.b)
		case "Graceful", "Forced":
			begun, deadline, ended := v.parse(s.StartedAt), v.parse(s.Deadline), v.parse(s.EndedAt)
			if s.Cause != "LauncherSignal" || deadline.Sub(begun) != grace || s.Outcome == "Forced" && ended.Before(deadline) {
				t.Errorf("%s: %+v; want the whole grace period of %v", v.Name, s, grace)
			}
			from, held := signalled[v]
			if !held {
				from = at // the test missed the short time for which it was held
			}
			if wait := begun.Sub(from); wait > allowance+time.Second {
				t.Errorf("%s is asked %v after its launcher was signalled, it may be held for %v", v.Name, wait, allowance)
			}
			v.podGone(time.Now().Add(soon))
		default: // its pod was gone before the test read the outcome
			node.Eventually(t, soon, func() bool { return v.wasMoved() || v.wasShutDown() }, "%s was neither moved nor shut down", v.Name)
			if v.wasMoved() {
				moved++
				v.moved(w.b)
			}
		}
	}
	w.step("%d of %d were moved", moved, len(all))
	if moved == 0 {
		t.Error("none was moved")
	}
}

func (v *vm) wasMoved() bool { return strings.HasPrefix(v.migrations(), "Succeeded ") }

// wasShutDown tells whether the agent says that the VM was shut down and that nobody else
// ended it.
func (v *vm) wasShutDown() bool {
	return slices.ContainsFunc(v.events(), func(e event) bool {
		return e.Reason == "ShutdownCompleted" && strings.HasPrefix(e.Message, "LauncherSignal: Graceful") ||
			e.Reason == "ShutdownForced" && strings.HasPrefix(e.Message, "LauncherSignal: Forced")
	})
}
