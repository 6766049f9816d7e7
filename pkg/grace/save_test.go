package grace

import (
	"testing"
	"time"
)

func TestWhatNoTenantCausesIsSavedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*VM)
		now    bool
	}{
		"its launcher states another grace period": {change: func(v *VM) {
			d := registered("uid")
			d.Grace = "7"
			v.SeeDirectory(d, at(1), at(1))
		}},
		"its launcher registers again": {change: func(v *VM) {
			d := registered("uid")
			d.Holder.File = 78
			v.SeeDirectory(d, at(1), at(1))
		}},
		"the API server has shown its VMI": {now: true, change: func(v *VM) {
			v.SeeVMI(VMI{State: VMIPresent, UID: "uid", Created: born})
			v.Learn("uid", FateHere, at(1))
		}},
		"a shutdown begins": {now: true, change: func(v *VM) { v.SeeDirectory(withTrigger(registered("uid"), 1, "uid"), at(1), at(1)) }},
	} {
		t.Run(name, func(t *testing.T) {
			// Given: a VM at rest whose record was saved a moment ago.
			v := inPhase(t, Running)
			v.SeeDirectory(registered("uid"), at(0), at(0))
			settle(t, v, at(0.9))
			c.change(v)
			// Then.
			saved := Never
			for now := at(1); now < at(4); now = now.Add(10 * time.Millisecond) {
				for range 20 {
					d := v.Next(now)
					if d.Do == Save {
						saved = min(saved, now)
					}
					if !carryOut(t, v, d, now) {
						break
					}
				}
			}
			if c.now != (saved == at(1)) || saved > at(2) {
				t.Errorf("saved at t0+%v", saved.Sub(t0))
			}
		})
	}
}

// settle carries out decisions until it has to wait.
func settle(t *testing.T, v *VM, now Mono) {
	t.Helper()
	for range 50 {
		if !carryOut(t, v, v.Next(now), now) {
			return
		}
	}
	t.Fatal("it does not settle")
}

// carryOut returns false for Wait.
func carryOut(t *testing.T, v *VM, d Decision, now Mono) bool {
	t.Helper()
	switch d.Do {
	case Wait:
		return false
	case Adopt, Refresh, Begin, Identify:
		if err := v.done(d, now, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	case Announce, RejectPeriod, WarnOfPod, WarnOfSave, Follow, ClearTrigger, ReportFailed:
		v.Done(d, Result{}, t0)
	default:
		v.Done(d, Result{Call: v.Started(d, now)}, now)
	}
	return true
}
