package besidekubevirt

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
)

const taint = "vmgrace.dev/e2e"

// Given a polite guest and one that ignores ACPI, whose VMs KubeVirt runs. When the scheduler
// preempts their launchers, then KubeVirt moves both at its highest priority, before anybody
// has asked the guests, and the more important pod runs. When their node gets a NoExecute
// taint, then both are moved again. Otherwise the polite one would be off.
func TestPreemptedAndTaintedVMsMoveAndTheirGuestsAreNotAsked(t *testing.T) {
	w := given(t)
	w.holdable()
	all := w.vms(w.a, plan{name: "polite", behaviour: "polite", grace: 30, cpu: w.share(20)}, plan{name: "deaf", behaviour: "deaf", grace: 30, cpu: w.share(20)})
	moves := func(to *cluster.Node, migrations string) {
		t.Helper()
		for _, v := range all {
			v.moved(to)
			if got := v.migrations(); got != migrations {
				t.Errorf("the migrations of %s: %q", v.name, got)
			}
		}
	}
	const moved = "system-critical Succeeded;"
	w.important(w.a)
	moves(w.b, moved)
	w.importantRuns()
	w.Kubectl(t, "delete", "pod", "-n", namespace, "important", "--grace-period=1")

	w.afterwards("taint", "node", w.b.Name, taint+"-")
	w.Kubectl(t, "taint", "node", w.b.Name, taint+"=1:NoExecute")
	moves(w.a, moved+moved)

	// When somebody deletes the VMIs, then the guests are asked at once: it was their memory
	// that moved.
	begin := time.Now()
	w.Kubectl(t, "delete", "vmi", "-n", namespace, "polite", "--wait=false")
	w.step("the guest is asked after %v", all[0].pressed().Sub(begin))
	all[0].gone(all[0].pod)
	w.step("the launcher is gone")
}
