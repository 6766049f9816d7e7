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
	ofBothKindsIfLong(t, started, pausedAndMoved)
}

func pausedAndMoved(w world) {
	t := w.TB
	// Given a guest that writes faster than it is sent and whose launcher is preempted.
	v := w.guarded(node.Spec{Behaviour: "busy=48"})
	v.watchForTwo()
	from := time.Now()
	v.preempted()
	node.Eventually(w, soon, func() bool { s, _ := w.a.agent.StatusOf(w, v.Guest); return s.Phase == "Held" }, "the shutdown is not held")
	held := time.Now()
	// When it is migrated,
	const after = 8 * time.Second
	v.schedule(w.b, `"bandwidthMiB":16,"pauseAfter":8`)
	node.Eventually(w, soon, func() bool { return w.a.state(v.Domain) == "paused" }, "the guest is not paused")
	if time.Since(from) < after || time.Since(held) > after+3*time.Second {
		t.Errorf("paused %v to %v after its launcher was signalled, want %v", time.Since(held), time.Since(from), after)
	}
	// then it is paused after 8 s, moves, and runs on the target.
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

func TestAGuestThatItsUserHasPausedMovesAndStaysPaused(t *testing.T) {
	ofBothKindsIfLong(t, started, staysPaused)
}

func staysPaused(w world) {
	t := w.TB
	// Given a guest that counts on its disk and that its user has paused.
	v := w.counting(node.Spec{Behaviour: "disk=count"})
	v.counts()
	w.kind.user(v, "suspend")
	v.stopped = true
	// When the guest is moved,
	v.schedule(w.b, `"bandwidthMiB":200`)
	if !v.decided() {
		t.Fatalf("it was not moved: %s", v.whyFailed())
	}
	// then it is paused on the target, and a restarted agent does not resume it either.
	w.b.restart(w)
	node.Never(w, 5*time.Second, func() bool { return w.b.state(v.Domain) != "paused" }, "it does not stay paused")
	// When it is moved back before it has run, then it stays and is unharmed: QEMU cannot
	// send such a guest.
	v.schedule(w.a, `"bandwidthMiB":200`)
	if v.decided() {
		t.Error("it was moved back; sent so QEMU has failed")
	}
	// When its user resumes it, then it runs on. When its VMI is deleted while it is paused
	// again, then it is shut down like any other guest.
	w.kind.user(v, "resume")
	v.counts()
	w.kind.user(v, "suspend")
	v.ends()
}

func TestADeletedLauncherWaitsForItsVMsMigration(t *testing.T) {
	ofBothKindsIfLong(t, started, launcherWaits)
}

func launcherWaits(w world) {
	t := w.TB
	v := w.guarded(node.Spec{})
	v.watchForTwo()
	// When the launcher pod is deleted while its guest is sent,
	v.schedule(w.b, `"bandwidthMiB":8`)
	node.Eventually(w, soon, func() bool { return w.get("vmim", v.migration, "{.status.migrationState.progress.percent}") != "" }, "it is not sent")
	w.api.Kubectl(w, "delete", "pod", v.here.pod, "--wait=false")
	if err := v.here.shim.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.Eventually(w, soon, func() bool {
		s, _ := w.a.agent.StatusOf(w, v.Guest)
		return s.Phase == "Held" && s.Cause == "LauncherSignal"
	}, "the shutdown does not wait")
	// then the guest moves and is never asked to shut down.
	v.cause = "LauncherSignal"
	if !v.decided() {
		t.Fatalf("it was not moved: %s", v.whyFailed())
	}
}
