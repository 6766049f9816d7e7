//go:build nightly && !unit

package handover

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given a guest that is paused for its migration. When the migration fails, then the guest
// runs on and is shut down with its whole grace period. Otherwise it would stay paused and
// could not power off.
func TestAGuestThatWasPausedInVainRunsOnAndIsAsked(t *testing.T) {
	ofBothKindsIfLong(t, started, pausedInVain)
}

func pausedInVain(w world) {
	t := w.TB
	v := w.guarded(node.Spec{Behaviour: "busy=48"})
	v.watchForTwo()
	v.preempted()
	v.schedule(w.b, `"bandwidthMiB":1,"pauseAfter":4`)
	node.Eventually(w, soon, func() bool { return w.a.state(v.Domain) == "paused" }, "the guest is not paused")
	// When the migration is aborted and no other one follows,
	v.patch(`{"migrationState":{"abortRequested":true,"failureReason":"as the test wants"}}`)
	node.Eventually(w, soon, func() bool { return v.states() == "Running/Absent" && w.a.runs(v.Domain) }, "the guest does not run on")
	v.patch(`{"phase":"Failed"}`)
	w.api.Kubectl(w, "patch", "vmi", v.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"evacuationNodeName":null}}`)
	// then the guest's shutdown begins, and it powers off.
	if s := v.here.launcher.WaitStopped(w, time.Minute); s.Outcome != "Graceful" || s.Cause != "LauncherSignal" {
		t.Errorf("status.json: %+v", s)
	}
	if n := v.Presses(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}
