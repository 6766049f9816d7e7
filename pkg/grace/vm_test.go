package grace

import (
	"testing"
	"time"
)

// inPhase is a VM of which a record stands in a phase at t0, "" without one.
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
		if err := v.rec.start(LauncherSignal, start, start, time.Unix(0, 0), false); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

func TestARecordChangesOnlyAsTheTableSays(t *testing.T) {
	for _, phase := range []Phase{"", Running, ShuttingDown, Destroying, Stopped} {
		for _, action := range []Action{Adopt, Identify, Refresh, Begin, Shorten, DropDryRun, Finish, Forget, Reset} {
			var to Phase
			allowed := false
			for _, tr := range transitions {
				if tr.from == phase && tr.by == action {
					to, allowed = tr.to, true
				}
			}
			v := inPhase(t, phase)
			before := v.rec
			err := v.Apply(Decision{Do: action, Cause: VMIDeleted, When: t0}, t0, time.Unix(0, 0))
			switch {
			case !allowed && (err == nil || v.rec != before):
				t.Errorf("%q by %s: %v; want it refused and nothing changed", phase, action, err)
			case allowed && (err != nil || v.phase(t0) != to && (to != ShuttingDown || v.phase(t0) != Destroying)):
				t.Errorf("%q by %s: %q, %v; want %q", phase, action, v.phase(t0), err, to)
			}
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
	if err := v.Apply(Decision{Do: Reset}, t0, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	if v.Done(ask, started, false, t0) || v.rec != (Record{}) {
		t.Error("an answer of the instance before is taken for this one's")
	}
}
