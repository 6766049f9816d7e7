package grace

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var born = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// shown returns a guarded VM whose VMI the API server shows.
func shown() (Record, observation) {
	r, o := guarded(30 * time.Second)
	r.VMICreated = born
	o.Owner.Shown = VMI{State: VMIPresent, UID: "uid", Created: born}
	return r, o
}

func TestDecideAboutAVMI(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(r *Record, o *observation)
		now   Mono
		do    Action
		cause Cause
	}{
		{name: "it is there", do: Wait},
		{name: "nobody can be asked", given: func(_ *Record, o *observation) { o.Owner.Shown = VMI{} }, do: Wait},
		{name: "it is missing", given: func(_ *Record, o *observation) { o.Owner.Shown = VMI{State: VMIAbsent} }, do: Confirm},
		{name: "one of that name has another UID", given: func(_ *Record, o *observation) { o.Owner.Shown.UID = "other" }, do: Confirm},
		{name: "the answer is on its way", given: func(_ *Record, o *observation) {
			o.Owner.Shown, o.Confirm = VMI{State: VMIAbsent}, Call{Running: true, Tries: 1, Last: t0}
		}, do: Wait},
		{name: "it is missing and there was no answer", given: func(_ *Record, o *observation) {
			o.Owner.Shown, o.Confirm = VMI{State: VMIAbsent}, Call{Failed: true, Tries: 1, Last: t0}
		}, now: t0.Add(confirmRetry), do: Confirm},
		{name: "the API server never showed one", given: func(r *Record, o *observation) { r.VMICreated, o.Owner.Shown = time.Time{}, VMI{State: VMIAbsent} }, do: Wait},
		{name: "it is missing, and deleted", given: func(_ *Record, o *observation) {
			o.Owner.Shown, o.Owner.Fate, o.Owner.FateAt = VMI{State: VMIAbsent}, FateDeleted, t0
		}, do: Begin, cause: VMIDeleted},
		{name: "it was not asked for since the instance is there", given: func(r *Record, _ *observation) { r.VMICreated = time.Time{} }, do: Confirm},
		{name: "it is missing, and moved", given: func(_ *Record, o *observation) {
			o.Owner.Shown, o.Owner.Fate, o.Owner.Former, o.Owner.FormerFate = VMI{State: VMIAbsent}, FateMoved, "uid", FateMoved
		}, do: Forget},
		{name: "it moved, and its launcher here gets its signal", given: func(_ *Record, o *observation) {
			o.Owner.Shown, o.Owner.Fate, o.Owner.Former, o.Owner.FormerFate = VMI{State: VMIAbsent}, FateMoved, "uid", FateMoved
			o.Trigger, o.TriggerAt = true, t0
		}, do: Begin, cause: LauncherSignal},
		{name: "it shows its deletion", given: func(_ *Record, o *observation) { o.Owner.Shown.State, o.Owner.Shown.DeletingAt = VMIDeleting, t0 }, do: Begin, cause: VMIDeleted},
		{name: "it shows its deletion, and was not asked for since the instance is there", given: func(r *Record, o *observation) {
			r.VMICreated, o.Owner.Shown.State, o.Owner.Shown.DeletingAt = time.Time{}, VMIDeleting, t0
		}, do: Confirm},
		{name: "the same, and nobody can be asked", given: func(r *Record, o *observation) {
			r.VMICreated, o.Owner.Shown.State, o.Owner.Shown.DeletingAt = time.Time{}, VMIDeleting, t0
			o.Confirm = Call{Failed: true, Tries: 1, Last: at(59)}
		}, now: at(60), do: Wait},
		{name: "it was lost with its CRD", given: func(r *Record, o *observation) {
			o.Owner.Shown.State, o.Owner.Former, o.Owner.FormerFate, r.VMICreated = VMIDeleting, "uid", FateLost, time.Time{}
		}, now: at(60), do: Wait},
		{name: "a trigger that came first", given: func(_ *Record, o *observation) {
			o.Owner.Shown.State, o.Owner.Shown.DeletingAt, o.Owner.Fate = VMIDeleting, at(2), FateDeleted
			o.Trigger, o.TriggerAt = true, at(1)
		}, now: at(3), do: Begin, cause: LauncherSignal},
		{name: "a deletion that came first", given: func(_ *Record, o *observation) {
			o.Owner.Shown.State, o.Owner.Shown.DeletingAt, o.Owner.Fate = VMIDeleting, at(1), FateDeleted
			o.Trigger, o.TriggerAt = true, at(2)
		}, now: at(3), do: Begin, cause: VMIDeleted},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, o := shown()
			if c.given != nil {
				c.given(&r, &o)
			}
			if d := decide(&r, &o, &policy, max(c.now, t0)); d.Do != c.do || d.Cause != c.cause {
				t.Errorf("%s %s by %q; want %s %s", d.Do, d.Cause, d.Rule, c.do, c.cause)
			}
		})
	}
}

// Whatever the watch shows and the API server answers, a deletion shuts a VM down only if
// its own VMI was shown or confirmed to be deleted.
func TestOnlyADeletionShutsAVMDown(t *testing.T) {
	uids := []string{"uid", "other"}
	rapid.Check(t, func(t *rapid.T) {
		r, o := shown()
		now := t0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "later")))
			state := rapid.SampledFrom([]VMIState{VMIUnknown, VMIAbsent, VMIPresent, VMIDeleting}).Draw(t, "state")
			v := VMI{State: state}
			if state == VMIPresent || state == VMIDeleting {
				v.UID, v.Created = rapid.SampledFrom(uids).Draw(t, "uid"), born
			}
			if state == VMIDeleting {
				v.DeletingAt = now
			}
			if o.Owner.see(&r, v) {
				o.Confirm = Call{}
			}
			for range 10 {
				d := decide(&r, &o, &policy, now)
				switch d.Do {
				case Wait:
				case Refresh:
					r.refresh(&o)
					continue
				case Confirm:
					asked, _ := o.Owner.Is(&r)
					if o.Owner.endedUID() == asked {
						t.Fatal("asked about a VMI that says nothing any more")
					}
					fate := rapid.SampledFrom([]Fate{FateUnknown, FateHere, FateLost, FateDeleted, FateReplaced}).Draw(t, "fate")
					o.Confirm.Tries, o.Confirm.Last, o.Confirm.Failed = o.Confirm.Tries+1, now, fate == FateUnknown
					if fate != FateUnknown {
						o.Owner.learn(&r, asked, fate, now)
					}
					continue
				case Begin:
					itself := o.Owner.Shown.State == VMIDeleting && o.Owner.Shown.UID == r.UID && o.Owner.endedUID() != r.UID
					if d.Cause != VMIDeleted || !itself && o.Owner.Fate != FateDeleted {
						t.Fatalf("began by %q with %+v, fate %q", d.Rule, o.Owner.Shown, o.Owner.Fate)
					}
					return
				default:
					t.Fatalf("%s by %q has no place here", d.Do, d.Rule)
				}
				break
			}
		}
	})
}
