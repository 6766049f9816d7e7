package hold

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// The latest moment of a hold is never extended, whatever a new agent knows of it.
func TestAHoldSurvivesTheAgent(t *testing.T) {
	for name, lose := range map[string]func(r *rig){
		"it sees everything":  func(*rig) {},
		"the API is down":     func(r *rig) { r.shown, r.vm, r.down = nil, VM{}, true },
		"the record is lost":  func(r *rig) { clear(r.records) },
		"a foreign boot's is": func(r *rig) { rec := r.records[domain]; rec.BootID = "boot-0"; r.records[domain] = rec },
	} {
		t.Run(name, func(t *testing.T) {
			given(t, func(r *rig) {
				r.preempted(true)
				r.api(func() { r.vm.Moving = true })
				r.after(time.Minute)
				r.stop()
				r.change(func() {
					lose(r)
					if len(r.shown) > 0 { // a new watch sees the deletion anew
						r.shown[0].DeletingAt, r.shown[0].KillAt = r.clock.Now(), r.clock.Now().Add(r.shown[0].DeletionGrace)
					}
				})
				r.after(10 * time.Second)
				r.start()
				r.want("it goes on", true, true)
				if n := r.keeper.Phases()[grace.Held]; n != 1 {
					t.Errorf("%d holds", n)
				}
				r.after(50*time.Second - time.Nanosecond)
				r.want("just before", true, true)
				r.after(time.Nanosecond)
				r.wantEnd(TimeIsOver)
			})
		})
	}
}

// Given a record of another boot whose removal takes long, when a hold of that VM begins meanwhile,
// then its record stays.
func TestAHoldThatBeginsDuringARemovalKeepsItsRecord(t *testing.T) {
	given(t, func(r *rig) {
		r.stop()
		r.records[domain] = grace.Record{Namespace: "ns", Name: "vm", BootID: "boot-0"}
		r.removal = func() { <-time.After(time.Second) }
		r.start()
		r.preempted(true)
		r.after(2 * time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		if rec := r.records[domain]; !rec.Hold.UnderWay() || rec.BootID != boot {
			t.Errorf("%+v", r.records)
		}
	})
}

// A new agent without the record lists the pods before the VMIs.
func TestAHoldWithoutARecordSurvivesAVMIThatIsShownLater(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(true)
		r.after(time.Minute)
		r.stop()
		vm := r.vm
		vm.Moving = true
		r.change(func() { clear(r.records); r.vm = VM{} })
		r.start()
		r.after(time.Second)
		r.want("the pods are listed", true, true)
		r.api(func() { r.vm = vm })
		r.after(59*time.Second - time.Nanosecond)
		r.want("just before", true, true)
		r.after(time.Nanosecond)
		r.wantEnd(TimeIsOver)
	})
}

// An agent dies between the two steps of letting go.
func TestALauncherThatWasLetGoIsNotHeldAgain(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(true)
		r.stop()
		r.change(func() { r.dir.Held = false })
		r.start()
		r.wantEnd(LauncherGone)
	})
}

func TestADiskThatHangsCostsNoHold(t *testing.T) {
	given(t, func(r *rig) {
		answers := make(chan struct{})
		r.change(func() { r.disk = func() { <-answers } })
		r.preempted(true)
		r.after(saveTimeout)
		r.want("from memory", true, true)
		close(answers)
		r.after(lookInterval)
		if _, ok := r.records[domain]; !ok {
			t.Error("it is not written when the disk answers")
		}
	})
}

// A write that comes late must not bring back the record of a hold that is over.
func TestAHoldThatIsOverLeavesNoRecord(t *testing.T) {
	given(t, func(r *rig) {
		answers := make(chan struct{})
		r.change(func() { r.disk = func() { <-answers } })
		r.preempted(true)
		r.change(func() { r.disk = func() {} })
		r.after(saveTimeout)
		r.api(func() { r.vm.Left = true })
		r.after(saveTimeout)
		close(answers)
		r.after(lookInterval)
		r.wantEnd(Moved)
	})
}
