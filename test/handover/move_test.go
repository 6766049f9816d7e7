//go:build !unit

package handover

import (
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAGuestMovesThroughBothAgents(t *testing.T) {
	w := given(t)
	v := w.guarded(node.Spec{GuestAgent: true, Grace: "77"})
	v.watchForTwo()
	v.schedule(`"bandwidthMiB":200`)
	v.waitState("targetState", "Running")

	// The source: QEMU is gone, the launcher is told, nothing is lost.
	if !v.Gone() || w.b.state(v.Domain) != "running" {
		t.Fatalf("source gone: %v, target: %q", v.Gone(), w.b.state(v.Domain))
	}
	if s := v.Launcher.WaitStopped(w, soon); s.Outcome != "Migrated" || s.Cause != "" {
		t.Errorf("status.json of the source: %+v", s)
	}
	node.Eventually(w, soon, func() bool { _, ok := w.a.agent.StatusOf(w, v.Guest); return !ok }, "the source's record is still there")
	// The target: a record, and the same guest that goes on.
	node.Eventually(w, soon, func() bool {
		s, ok := w.b.agent.StatusOf(w, v.Guest)
		return ok && s.Phase == "Running" && s.UID == v.uid && s.GracePeriodSeconds == 77
	}, "the target does not guard the guest")
	// QEMU of the target has begun the console's file anew: a guest that boots would say so.
	if up, presses := strings.Count(v.Serial(), "vmgrace-guest: up"), v.Presses(); up != 0 || presses != 0 {
		t.Errorf("the guest booted %d more times and was asked %d times", up, presses)
	}

	// The controller moves the VMI; its grace period counts then, and its deletion.
	w.api.Kubectl(w, "label", "vmi", v.Name, "kubevirt.io/nodeName=node-b", "--overwrite")
	v.patch(`{"phase":"Succeeded"}`)
	node.Eventually(w, soon, func() bool { s, _ := w.b.agent.StatusOf(w, v.Guest); return s.GracePeriodSeconds == 60 }, "the VMI's grace period does not count")
	w.api.Kubectl(w, "delete", "vmi", v.Name)
	if s := v.there.WaitStopped(w, soon); s.Outcome != "Graceful" || s.Cause != "VMIDeleted" {
		t.Errorf("status.json of the target: %+v", s)
	}
	if got := w.api.Kubectl(w, "get", "events", "--field-selector", "involvedObject.uid="+v.uid, "-o", "jsonpath={.items[*].reason}"); strings.Count(got, "Shutdown") != 2 {
		t.Errorf("Events: %s; want ShutdownStarted and ShutdownCompleted, once", got)
	}
}
