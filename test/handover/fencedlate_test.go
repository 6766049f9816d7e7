//go:build nightly && !unit

package handover

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given a node that is declared dead although its guest runs on there. When its agent comes back,
// then it ends that guest before the copy runs: the test watches for two. Otherwise two guests
// would write on one disk.
func TestAFencedNodeThatLivesEndsItsGuestFirst(t *testing.T) {
	ofBothKinds(t, linked, fencedNodeThatLives)
}

func fencedNodeThatLives(w world) {
	t := w.TB
	v := w.guarded(node.Spec{GuestAgent: true})
	v.watchForTwo()
	from, to := v.here.host, w.other(v.here.host)
	v.undecided(func(*host) {})
	runsOnAtTheSource(v)
	v.fence()
	from.agent.Start(w)
	node.Eventually(w, soon, func() bool { return from.state(v.Domain) == "" }, "the source's guest goes on")
	node.Eventually(w, soon, func() bool { return to.runs(v.Domain) }, "the copy does not run")
	if !v.decided() {
		t.Errorf("it was not moved: %s", v.whyFailed())
	}
	v.ends()
}

// Given a fenced node whose agent comes back when the VM runs elsewhere and its migration is long
// gone. Then the agent ends what is left of the guest, without a grace period.
func TestAnAgentThatReturnsLateEndsAGivenUpGuest(t *testing.T) {
	ofBothKindsIfLong(t, linked, returnsLate)
}

func returnsLate(w world) {
	t := w.TB
	v := w.guarded(node.Spec{GuestAgent: true})
	from, to := v.here.host, w.other(v.here.host)
	v.undecided(func(*host) {})
	runsOnAtTheSource(v)
	v.fence()
	node.Eventually(w, soon, func() bool { return to.runs(v.Domain) && v.states() == "Gone/Running" }, "the copy does not run")
	w.api.Kubectl(w, "patch", "vmi", v.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"vmgraceFencedNodes":["`+from.name+`"]}}`)
	w.api.Kubectl(w, "label", "vmi", v.Name, "kubevirt.io/nodeName="+to.name, "--overwrite")
	w.api.Kubectl(w, "delete", "vmim", v.migration)
	from.agent.Start(w)
	node.Eventually(w, soon, func() bool { return from.state(v.Domain) == "" }, "the source's guest goes on")
	if s := v.here.launcher.WaitStopped(w, soon); s.Outcome != "Forced" || s.Cause != "NodeFenced" {
		t.Errorf("status.json of the source: %+v", s)
	}
	if !to.runs(v.Domain) {
		t.Error("the guest at the target has ended")
	}
}

// runsOnAtTheSource waits until libvirt lets the guest of an undecided migration run on. No agent
// lives that could do so in a launcher.
func runsOnAtTheSource(v *vm) {
	v.w.Helper()
	from := v.here.host
	node.Eventually(v.w, soon, func() bool { return from.runs(v.Domain) || v.w.kind == inPods{} && from.state(v.Domain) != "" }, "it does not run on at the source")
}
