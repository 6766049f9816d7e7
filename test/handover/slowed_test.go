//go:build nightly && !unit

package handover

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAGuestThatOutpacesItsMigrationIsSlowedIfAllowed(t *testing.T) {
	ofBothKindsIfLong(t, started, slowedIfAllowed)
}

func slowedIfAllowed(w world) {
	t := w.TB
	v := w.guarded(writes)
	v.watchForTwo()
	// When auto-converge is allowed,
	v.schedule(w.b, `"bandwidthMiB":12,"allowAutoConverge":true`)
	// then QEMU throttles the guest's CPUs, and the guest moves. The test does not check
	// the guest's data: emulated CPUs that are throttled lose writes (QEMU 7.2, also with
	// virsh migrate --auto-converge).
	node.Eventually(w, 4*soon, func() bool { // QEMU sends the memory more than once, on a busy machine
		_, slowed := w.kind.job(v)
		return slowed > 0
	}, "nobody says that the guest is slowed")
	if !v.decided() {
		t.Fatalf("it was not moved: %s", v.whyFailed())
	}
	if mode := w.get("vmim", v.migration, "{.status.migrationState.mode}"); mode == "Paused" {
		t.Error("it was paused")
	}
}
