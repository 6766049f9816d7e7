package grace

import (
	"testing"
	"time"
)

// inPhase returns a VM whose record is in phase p at t0; "" means without a record.
func inPhase(t *testing.T, p Phase) *VM {
	t.Helper()
	v := NewVM("ns", "vm", Record{}, &policy)
	if p == "" {
		return v
	}
	v.rec, v.obs = guarded(time.Minute)
	start := t0
	switch p {
	case Destroying:
		start = t0.Add(-time.Hour)
	case Stopped:
		v.obs.Ending = &Ending{}
	default:
	}
	if p == ShuttingDown || p == Destroying {
		v.rec.begin(LauncherSignal, start, time.Unix(0, 0), false)
	}
	return v
}

func TestARecordChangesOnlyAsTheTableSays(t *testing.T) {
	for _, tr := range transitions {
		if tr.by == Ask || tr.by == Terminate || tr.by == Kill || tr.by == Destroy || tr.from == Held {
			continue // they change nothing, or are in the stories
		}
		v := inPhase(t, tr.from)
		if err := v.done(Decision{Do: tr.by, Cause: VMIDeleted, When: t0}, t0, time.Unix(0, 0)); err != nil {
			t.Error(err)
		}
	}
}

func TestAVMIThatIsBackCountsWhateverWasAnsweredMeanwhile(t *testing.T) {
	r, o := shown()
	w := &o.Owner
	// Given: it has left, and is back before the API server's answer.
	w.see(&r, VMI{State: VMIAbsent})
	w.see(&r, VMI{State: VMIPresent, UID: "uid", Created: born})
	w.learn(&r, "uid", FateMoved, t0)
	// When it is deleted then.
	w.see(&r, VMI{State: VMIAbsent})
	if d := decide(&r, &o, &policy, t0); d.Do != Confirm {
		t.Fatalf("%s by %q; want the API server to be asked again", d.Do, d.Rule)
	}
	w.learn(&r, "uid", FateDeleted, t0)
	if d := decide(&r, &o, &policy, t0); d.Do != Begin || d.Cause != VMIDeleted {
		t.Errorf("%s by %q; want a shutdown", d.Do, d.Rule)
	}
}

func TestASuccessorThatIsShownIsToldFromTheRecordedVMI(t *testing.T) {
	r, o := shown()
	w := &o.Owner
	w.see(&r, VMI{State: VMIDeleting, UID: "next", Created: born, Grace: "1", DeletingAt: t0})
	if d := decide(&r, &o, &policy, t0); d.Do != Confirm {
		t.Errorf("%s by %q: the successor's deletion is not this VM's", d.Do, d.Rule)
	}
	if uid, created := w.Is(&r); uid != "uid" || created.IsZero() {
		t.Errorf("it is taken for %q", uid)
	}
	w.learn(&r, "uid", FateHere, t0)
	o.Confirm = Call{Tries: 1, Last: t0}
	if d := decide(&r, &o, &policy, t0); d.Do != Wait {
		t.Errorf("%s by %q; want the VM to go on", d.Do, d.Rule)
	}
}

func TestAVMIThatMovedAndIsBackIsNoFormerOne(t *testing.T) {
	w := owner{Claimed: "uid", Former: "uid", FormerFate: FateMoved}
	if !w.leftBehind() {
		t.Error("the launcher of a VMI that moved is not left behind")
	}
	w.see(&Record{}, VMI{State: VMIPresent, UID: "uid", Created: born})
	if v := w.current(); !v.visible() {
		t.Error("it is back and does not count")
	}
	w.FormerFate = FateDeleted
	if v := w.current(); v.visible() {
		t.Error("a VMI whose shutdown is done counts again")
	}
}

func TestWhatIsFoundOutOfAnEarlierInstanceSaysNothing(t *testing.T) {
	v := inPhase(t, ShuttingDown)
	ask := Decision{Do: Ask, Mode: ModeACPI}
	started := v.Started(ask, t0)
	v.obs.Ending = &Ending{}
	if err := v.done(Decision{Do: Reset}, t0, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	if v.Done(ask, Result{Call: started}, t0) || v.rec != (Record{}) {
		t.Error("an answer of the instance before is taken for this one's")
	}
}
