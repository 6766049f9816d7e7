//go:build !unit

package handover

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAGuestThatDoesNotConvergeIsPausedAndMoved(t *testing.T) {
	// Given: a guest that writes more than is sent, and whose launcher is preempted.
	w := given(t)
	v := w.guarded(node.Spec{Behaviour: "busy=48"})
	v.watchForTwo()
	from := time.Now()
	v.preempted()
	node.Eventually(w, soon, func() bool { s, _ := w.a.agent.StatusOf(w, v.Guest); return s.Phase == "Held" }, "the shutdown is not held")
	held := time.Now()
	// When it is sent,
	const after = 8 * time.Second
	v.schedule(w.b, `"bandwidthMiB":16,"pauseAfter":8`)
	node.Eventually(w, soon, func() bool { return w.a.state(v.Domain) == "paused" }, "the guest is not paused")
	if time.Since(from) < after || time.Since(held) > after+3*time.Second {
		t.Errorf("paused %v to %v after its launcher was signalled, want %v", time.Since(held), time.Since(from), after)
	}
	// then it is paused for the rest, moves, and goes on there.
	if !v.decided() {
		t.Fatalf("it was not moved: %s", v.whyFailed())
	}
	if mode := w.get("vmim", v.migration, "{.status.migrationState.mode}"); mode != "Paused" {
		t.Errorf("mode %q", mode)
	}
	times := strings.Fields(w.get("vmim", v.migration, "{.status.migrationState.pauseTimestamp} {.status.migrationState.resumeTimestamp}"))
	if len(times) != 2 {
		t.Fatalf("paused and resumed: %v", times)
	}
	from, err := time.Parse(time.RFC3339, times[0])
	to, err2 := time.Parse(time.RFC3339, times[1])
	if err != nil || err2 != nil || to.Before(from) {
		t.Errorf("paused and resumed: %v", times)
	}
	t.Logf("paused for %v", to.Sub(from))
	node.Eventually(w, soon, func() bool {
		return v.events(",reason=GuestPaused") == "GuestPaused"
	}, "not one Event tells of the pause")
}

// A guest that is paused so that it can be sent, and is not: it runs on, and is shut
// down with the whole of its grace period.
func TestAGuestThatWasPausedInVainRunsOnAndIsAsked(t *testing.T) {
	w := given(t)
	v := w.guarded(node.Spec{Behaviour: "busy=48"})
	v.watchForTwo()
	v.preempted()
	v.schedule(w.b, `"bandwidthMiB":1,"pauseAfter":4`)
	node.Eventually(w, soon, func() bool { return w.a.state(v.Domain) == "paused" }, "the guest is not paused")
	// When the migration is aborted and there is no other,
	v.patch(`{"migrationState":{"abortRequested":true,"failureReason":"as the test wants"}}`)
	node.Eventually(w, soon, func() bool { return v.states() == "Running/Absent" && w.a.runs(v.Domain) }, "the guest does not run on")
	v.patch(`{"phase":"Failed"}`)
	w.api.Kubectl(w, "patch", "vmi", v.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"evacuationNodeName":null}}`)
	// then its shutdown begins, and it powers off.
	if s := v.here.launcher.WaitStopped(w, time.Minute); s.Outcome != "Graceful" || s.Cause != "LauncherSignal" {
		t.Errorf("status.json: %+v", s)
	}
	if n := v.Presses(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestAGuestThatItsUserHasPausedMovesAndStaysPaused(t *testing.T) {
	// Given: a guest that counts on its disk, and that its user pauses.
	w := given(t)
	v := w.counting(node.Spec{Behaviour: "disk=count"})
	v.counts()
	w.a.Virsh(w, "suspend", v.Domain)
	v.stopped = true
	// When it is moved,
	v.schedule(w.b, `"bandwidthMiB":200`)
	if !v.decided() {
		t.Fatalf("it was not moved: %s", v.whyFailed())
	}
	// then it is there, and is not resumed, also by an agent that starts.
	w.b.restart(w)
	node.Never(w, 5*time.Second, func() bool { return w.b.state(v.Domain) != "paused" }, "it does not stay paused")
	// QEMU cannot send it again before it has run: it stays, and is unharmed.
	v.schedule(w.a, `"bandwidthMiB":200`)
	if v.decided() {
		t.Error("it was moved back; sent so QEMU has failed")
	}
	// It goes on when its user says so, and is shut down as any other.
	v.here.Virsh(w, "resume", v.Domain)
	v.counts()
	v.here.Virsh(w, "suspend", v.Domain)
	v.ends()
}

func TestADeletedLauncherWaitsForItsVMsMigration(t *testing.T) {
	w := given(t)
	v := w.guarded(node.Spec{})
	v.watchForTwo()
	// When the launcher is deleted while its guest is sent,
	v.schedule(w.b, `"bandwidthMiB":4`)
	node.Eventually(w, soon, func() bool { return w.get("vmim", v.migration, "{.status.migrationState.progress.percent}") != "" }, "it is not sent")
	w.api.Kubectl(w, "delete", "pod", v.here.pod, "--wait=false")
	if err := v.here.shim.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.Eventually(w, soon, func() bool {
		s, _ := w.a.agent.StatusOf(w, v.Guest)
		return s.Phase == "Held" && s.Cause == "LauncherSignal"
	}, "the shutdown does not wait")
	// then it moves, and was never asked.
	v.cause = "LauncherSignal"
	if !v.decided() {
		t.Fatalf("it was not moved: %s", v.whyFailed())
	}
}
