package migrate

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// fenced returns a world whose migration has begun and whose source the controller has fenced.
func fenced(t *testing.T, phase kubevirt.MigrationPhase, target string, a, b hypervisor.Stay) *world {
	t.Helper()
	w := given(t)
	w.m.Status.Phase = phase
	s := w.m.Status.MigrationState
	s.StartTimestamp, s.DomainUUID = &metav1.Time{}, guestUUID
	s.SourceState, s.SourceFenced, s.TargetState = kubevirt.SourceGone, "taint", target
	w.stays["a"], w.stays["b"] = a, b
	return w
}

// startWithAddress starts both nodes, and then shows where the target listens.
func (w *world) startWithAddress() {
	w.t.Helper()
	w.m.Status.MigrationState.TargetNodeAddress = ""
	w.start()
	w.mu.Lock()
	is := w.m.DeepCopy()
	is.Status.MigrationState.TargetNodeAddress = w.addrs["b"]
	w.m = is
	w.mu.Unlock()
	w.change()
}

// Given libvirt that does not answer, the guest of a fenced source is ended by its process.
func TestAFencedGuestEndsWithoutLibvirt(t *testing.T) {
	w := fenced(t, kubevirt.MigrationRunning, kubevirt.TargetArrived, hypervisor.StayRunning, hypervisor.StayPaused)
	w.hangs, w.former = true, grace.Instance{UUID: guestUUID, PID: 1, Start: 1}
	w.start()
	w.eventually("QEMU has ended", func() bool { return closed(w.qemu.done) })
}

// Given a target that has reported that it has no copy, the guest of a fenced source is the only one.
func TestAFencedGuestWithoutACopyStays(t *testing.T) {
	w := fenced(t, kubevirt.MigrationRunning, kubevirt.TargetAbsent, hypervisor.StayRunning, hypervisor.StayAbsent)
	w.start()
	w.looked("a")
	if len(w.removed) > 0 || closed(w.qemu.done) {
		t.Error("the only guest was ended")
	}
}

// Given a source that cannot reach the API server, it learns from the target that it is fenced.
func TestATargetTellsThatItsSourceIsFenced(t *testing.T) {
	w := fenced(t, kubevirt.MigrationRunning, kubevirt.TargetArrived, hypervisor.StayRunning, hypervisor.StayPaused)
	w.cutOff = w.m.DeepCopy()
	s := w.cutOff.Status.MigrationState
	s.SourceState, s.SourceFenced, s.TargetState = "", "", ""
	w.startWithAddress()
	w.eventually("the guest has moved", func() bool { return slices.Equal(w.removed, []string{"a"}) && slices.Equal(w.resumed, []string{"b"}) })
}

// Given a list of migrations that is not complete yet, none decides that a copy is left: the one that
// has brought the guest back may be missing.
func TestAnIncompleteListEndsNoCopy(t *testing.T) {
	w := fenced(t, kubevirt.MigrationFailed, kubevirt.TargetAbsent, hypervisor.StayRunning, hypervisor.StayRunning)
	w.m.Status.MigrationState.TargetFenced, w.phase = "taint", ""
	n := New(Config{Node: "b", VMs: host{w, "b"}})
	if n.lookOnce(w.m, nil) {
		t.Error("a copy is looked for by an incomplete list")
	}
	n.synced = true
	if !n.lookOnce(w.m, nil) || n.lookOnce(w.m, nil) {
		t.Error("want one look by the complete list")
	}
}

// Given a target that was fenced and whose agent returns, it ends the copy, running or not, but no
// guest that it guards: the VM may have come back since.
func TestAReturningAgentEndsAFencedCopy(t *testing.T) {
	failed := func(b hypervisor.Stay, phase grace.Phase) *world {
		w := fenced(t, kubevirt.MigrationFailed, kubevirt.TargetAbsent, hypervisor.StayRunning, b)
		s := w.m.Status.MigrationState
		s.SourceState, s.SourceFenced, s.TargetFenced = kubevirt.SourceRunning, "", "taint"
		w.phase = phase
		w.start()
		return w
	}
	for _, b := range []hypervisor.Stay{hypervisor.StayRunning, hypervisor.StayPaused} {
		w := failed(b, "")
		w.eventually("the copy has ended", func() bool { return slices.Equal(w.removed, []string{"b"}) })
	}
	w := failed(hypervisor.StayRunning, grace.Running)
	w.eventually("the agent knows its migrations", func() bool { state, _ := w.nodes["b"].MigrationOf("ns_vm"); return state == grace.MigrationNone })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.removed) > 0 || w.looks["b"] > 0 {
		t.Errorf("removed %v, looked %d times", w.removed, w.looks["b"])
	}
}
