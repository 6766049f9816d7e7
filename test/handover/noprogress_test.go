//go:build nightly && !unit

package handover

import (
	"strings"
	"testing"
)

func TestAGuestThatMakesNoProgressStaysWhereItIs(t *testing.T) {
	ofBothKindsIfLong(t, started, noProgress)
}

func noProgress(w world) {
	t := w.TB
	v := w.guarded(writes)
	v.watchForTwo()
	// When the guest makes no progress for longer than the progress time-out allows,
	v.schedule(w.b, `"bandwidthMiB":8,"progressTimeout":5`)
	// then the migration fails for that reason, and the guest runs on where it is.
	if v.decided() {
		t.Fatal("it was moved: it made progress")
	}
	if why := v.whyFailed(); !strings.Contains(why, "progress") {
		t.Errorf("failed: %s", why)
	}
	if !w.a.runs(v.Domain) {
		t.Error("the guest does not run on")
	}
	v.ends()
}
