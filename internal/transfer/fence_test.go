package transfer

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

// Given a source that was fenced and lives, its agent ends its guest, and only then the copy is
// resumed: the world fails a resume beside a running QEMU.
func TestTheAgentOfAFencedSourceEndsItsGuest(t *testing.T) {
	for name, a := range map[string]hypervisor.Stay{"it ran on": hypervisor.StayRunning, "it was sent": hypervisor.StayLeft} {
		t.Run(name, func(t *testing.T) {
			w := fenced(t, kubevirt.MigrationRunning, kubevirt.TargetArrived, a, hypervisor.StayPaused)
			w.m.Status.MigrationState.TargetNodeAddress = "set below"
			w.startWithAddress()
			w.eventually("the guest has moved", func() bool {
				return slices.Equal(w.removed, []string{"a"}) && slices.Equal(w.resumed, []string{"b"}) && w.m.Status.MigrationState.TargetState == kubevirt.TargetRunning
			})
		})
	}
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

// Given an agent that returns to a fenced node after the migration is over, it ends what it finds.
func TestAReturningAgentEndsAFencedGuest(t *testing.T) {
	w := fenced(t, kubevirt.MigrationSucceeded, kubevirt.TargetRunning, hypervisor.StayRunning, hypervisor.StayRunning)
	w.start()
	w.eventually("the source's guest has ended", func() bool { return slices.Equal(w.removed, []string{"a"}) && closed(w.qemu.done) })
}

// Given a target that has reported that it has no copy, the guest of a fenced source is the only one.
func TestAFencedGuestWithoutACopyStays(t *testing.T) {
	for _, phase := range []kubevirt.MigrationPhase{kubevirt.MigrationRunning, kubevirt.MigrationFailed} {
		w := fenced(t, phase, kubevirt.TargetAbsent, hypervisor.StayRunning, hypervisor.StayAbsent)
		w.start()
		w.looked("a")
		if len(w.removed) > 0 || closed(w.qemu.done) {
			t.Errorf("%s: the only guest was ended", phase)
		}
	}
}

// Given a target that was fenced and whose agent returns, it ends its copy, running or not.
func TestAReturningAgentEndsAFencedCopy(t *testing.T) {
	for _, b := range []hypervisor.Stay{hypervisor.StayRunning, hypervisor.StayPaused} {
		w := fenced(t, kubevirt.MigrationFailed, kubevirt.TargetAbsent, hypervisor.StayRunning, b)
		s := w.m.Status.MigrationState
		s.SourceState, s.SourceFenced, s.TargetFenced = kubevirt.SourceRunning, "", "taint"
		w.start()
		w.eventually("the copy has ended", func() bool { return slices.Equal(w.removed, []string{"b"}) })
	}
}
