package grace

import (
	"testing"
	"time"
)

// ended returns a VM whose guest has powered off during its grace period.
func ended(t *testing.T) *VM {
	t.Helper()
	v := inPhase(t, ShuttingDown)
	v.obs.Announced, v.rec.Shutdown.Requested = true, true
	v.ProcessGone(at(2))
	v.SeeEnd(EndGuest)
	d := v.Next(at(2))
	if d.Do != Finish || d.Outcome != Graceful {
		t.Fatalf("%s %s by %q", d.Do, d.Outcome, d.Rule)
	}
	if err := v.done(d, at(2), time.Unix(2, 0)); err != nil {
		t.Fatal(err)
	}
	return v
}

// expect asks for a decision and has it carried out, or fail.
func expect(t *testing.T, v *VM, now Mono, do Action, fails bool) {
	t.Helper()
	d := v.Next(now)
	if d.Do != do {
		t.Fatalf("%s by %q, want %s", d.Do, d.Rule, do)
	}
	if do == Reset {
		if err := v.done(d, now, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		return
	}
	v.Done(d, Result{Call: v.Started(d, now), Failed: fails}, now)
}

func TestAnEndIsAnsweredThenSettledThenLetGo(t *testing.T) {
	v := ended(t)
	if s := v.Status(at(2)); s.Phase != Stopped || s.Cause != LauncherSignal || s.Outcome != Graceful || !s.EndedAt.Equal(time.Unix(2, 0)) {
		t.Errorf("status.json would be %+v", s)
	}
	if e := v.Ending(); e.Took != 2*time.Second {
		t.Errorf("it took %v", e.Took)
	}
	expect(t, v, at(2), Answer, false)
	expect(t, v, at(2), FlushEvents, false)
	expect(t, v, at(2), Reset, false)
	if v.Recorded() || v.Record() != (Record{}) || v.Summary(at(2)).Phase != "" {
		t.Errorf("%+v is left", v.Record())
	}
	v.obs.DirWanted, v.obs.LookAt = false, Never // looks are tested elsewhere
	expect(t, v, at(2), Remove, false)
	if d := v.Next(at(2)); d.Do != Wait || d.At != Never {
		t.Errorf("%s by %q until %v", d.Do, d.Rule, d.At)
	}
}

func TestAnAnswerThatFailsIsTriedSixTimesAndHoldsUpNobody(t *testing.T) {
	v := ended(t)
	now := at(2)
	for range answerTries - 1 {
		expect(t, v, now, Answer, true)
		if d := v.Next(now); d.Do != Wait || d.At != now.Add(answerRetry) {
			t.Fatalf("%s by %q until %v", d.Do, d.Rule, d.At)
		}
		now = now.Add(answerRetry)
	}
	expect(t, v, now, Answer, true)
	expect(t, v, now, FlushEvents, true)
	expect(t, v, now, Reset, false)
}

func TestWhileAnAnswerIsOnItsWayNothingElseIsDecided(t *testing.T) {
	for _, do := range []Action{Answer, FlushEvents} {
		v := ended(t)
		if do == FlushEvents {
			expect(t, v, at(2), Answer, false)
		}
		v.obs.DirWanted, v.obs.LookAt = false, Never
		d := v.Next(at(2))
		v.Started(d, at(2))
		if d.Do != do {
			t.Fatalf("%s by %q", d.Do, d.Rule)
		}
		if d := v.Next(at(60)); d.Do != Wait {
			t.Errorf("%s by %q while %s runs", d.Do, d.Rule, do)
		}
	}
}

func TestARecordThatCannotBeRemovedIsRetriedEachSecond(t *testing.T) {
	v := ended(t)
	for _, do := range []Action{Answer, FlushEvents, Reset} {
		expect(t, v, at(2), do, false)
	}
	quiet := func() { v.obs.DirWanted, v.obs.LookAt = false, Never }
	quiet()
	expect(t, v, at(2), Remove, true)
	if d := v.Next(at(2)); d.Do != Wait || d.At != at(3) || !v.Summary(at(2)).Unwritable {
		t.Fatalf("%s by %q until t0+%v", d.Do, d.Rule, d.At.Sub(t0))
	}
	expect(t, v, at(3), Remove, true)
	if v.Idle() {
		t.Error("nobody would try again")
	}
	// The next instance.
	v.obs.Dir.Present = true
	v.SeeDomain(Domain{Instance: Instance{UUID: "u2", PID: 43, Start: 8}}, at(4))
	d := v.Next(at(4))
	if err := v.done(d, at(4), time.Unix(0, 0)); d.Do != Adopt || err != nil {
		t.Fatalf("%s by %q, %v", d.Do, d.Rule, err)
	}
	for now := at(4); now < at(20); now = now.Add(time.Second) {
		if d := v.Next(now); d.Do == Remove {
			t.Fatal("the next instance's record is removed")
		} else if d.Do != Wait && d.Do != Finish {
			v.Done(d, Result{Call: v.Started(d, now)}, now)
		}
	}
}

func TestAStaleRecordOutlastsAShortLivedInstance(t *testing.T) {
	// given
	v := ended(t)
	for _, do := range []Action{Answer, FlushEvents, Reset} {
		expect(t, v, at(2), do, false)
	}
	v.obs.DirWanted, v.obs.LookAt, v.obs.Dir.Present = false, Never, true
	expect(t, v, at(2), Remove, true)
	// when: the next instance ends before anything of it is on disk
	v.SeeDomain(Domain{Instance: Instance{UUID: "u2", PID: 43, Start: 8}}, at(4))
	if d := v.Next(at(4)); d.Do != Adopt || v.done(d, at(4), time.Unix(0, 0)) != nil {
		t.Fatalf("%s by %q", d.Do, d.Rule)
	}
	v.ProcessGone(at(4))
	v.Ended(EndCrashed, "u2", at(4))
	if d := v.Next(at(4)); d.Do != Finish || v.done(d, at(4), time.Unix(0, 0)) != nil {
		t.Fatalf("%s by %q", d.Do, d.Rule)
	}
	// then: its launcher is told
	if s := v.Status(at(4)); s.Phase != Stopped || s.Outcome != Lost || s.End != EndCrashed {
		t.Errorf("status.json would be %+v", s)
	}
	for _, do := range []Action{Answer, FlushEvents, Reset} {
		expect(t, v, at(4), do, false)
	}
	// and the record of the one before is removed
	v.obs.DirWanted, v.obs.LookAt, v.obs.Dir.Present = false, Never, false
	if v.Idle() {
		t.Error("nobody would remove the record of the one before")
	}
	expect(t, v, at(4), Remove, false)
}

func TestARecordReadLateOfAnEndedInstanceIsRemoved(t *testing.T) {
	for name, of := range map[string]struct {
		former Instance
		takes  bool
	}{
		"the record's own":        {Instance{UUID: "u1", PID: 42, Start: 7}, false},
		"a later one":             {Instance{UUID: "u2", PID: 43, Start: 8}, false},
		"a later one, no process": {Instance{UUID: "u1"}, false},
		"none":                    {Instance{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			record, _ := begun(t, time.Minute)
			v := NewVM("ns", "vm", Record{}, &policy)
			v.obs.Former = of.former
			if v.Recover(record) != of.takes || v.Recorded() != of.takes {
				t.Errorf("taken over: %v, want %v", v.Recorded(), of.takes)
			}
			v.obs.DirWanted, v.obs.LookAt = false, Never
			if d := v.Next(at(0)); (d.Do == Remove) == of.takes {
				t.Errorf("%s by %q", d.Do, d.Rule)
			}
		})
	}
}

func TestATriggerIsConsumedByItsEndUnlessItIsForTheNext(t *testing.T) {
	for name, kept := range map[string]bool{"consumed": false, "kept": true} {
		v := ended(t)
		v.SeeDirectory(withTrigger(Directory{Present: true}, 5, ""), at(2), at(2))
		v.Ending().Kept = kept
		for _, do := range []Action{Answer, FlushEvents, Reset} {
			expect(t, v, at(2), do, false)
		}
		if v.obs.Trigger != kept {
			t.Errorf("%s: it counts for the next instance: %v", name, v.obs.Trigger)
		}
		// It is still there.
		v.SeeDirectory(withTrigger(Directory{Present: true}, 5, ""), at(3), at(3))
		if v.obs.Trigger != kept {
			t.Errorf("%s, and seen again: %v", name, v.obs.Trigger)
		}
	}
}

func TestUsersHearOfAShutdownOnceItIsDurableAndTheGuestWasAsked(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(o *observation)
		at    Mono
	}{
		{"durable, asked", func(*observation) {}, 0},
		{"not written yet", func(o *observation) { o.Unsaved = true }, Never},
		{"being written", func(o *observation) { o.Unsaved, o.Save = true, Call{Running: true, Tries: 1, Last: at(1)} }, at(1).Add(saveTimeout)},
		{"it cannot be written", func(o *observation) { o.Unsaved, o.Save = true, Call{Failed: true, Tries: 1, Last: at(1)} }, 0},
		{"being asked", func(o *observation) { o.AskACPI = Call{Running: true, Tries: 1, Last: at(1)} }, at(1).Add(afterAsk)},
		{"its agent is being asked", func(o *observation) { o.AskAgent = Call{Running: true, Tries: 1, Last: at(1)} }, at(1).Add(afterAsk)},
		{"it has ended", func(o *observation) { o.Ending = &Ending{} }, Never},
	} {
		v := inPhase(t, ShuttingDown)
		c.given(&v.obs)
		if got := v.obs.publishAt(); got != c.at {
			t.Errorf("%s: %v, want %v", c.name, got, c.at)
		}
	}
}

func TestAnEndIsToldAfterItsBegin(t *testing.T) {
	v := inPhase(t, ShuttingDown)
	v.ProcessGone(at(1))
	v.SeeEnd(EndGuest)
	d := v.Next(at(1))
	if d.Do != Announce {
		t.Fatalf("%s by %q; want the begin to be told first", d.Do, d.Rule)
	}
	v.Done(d, Result{}, t0)
	if d := v.Next(at(1)); d.Do != Finish {
		t.Errorf("%s by %q", d.Do, d.Rule)
	}
}

func TestStatusIsWrittenWhereItIsNewAndThereIsADirectory(t *testing.T) {
	v := inPhase(t, Running)
	v.obs.DirWanted = false
	if d := v.Next(t0); d.Do == WriteStatus != v.obs.Dir.Present {
		t.Fatalf("%s by %q", d.Do, d.Rule)
	}
	v.obs.Dir.Present = true
	expect(t, v, t0, WriteStatus, false)
	if d := v.Next(at(1)); d.Do != Wait {
		t.Errorf("%s by %q though nothing is new", d.Do, d.Rule)
	}
	// It is mounted over.
	v.SeeDirectory(Directory{Present: true, ID: [2]uint64{1, 2}}, at(2), at(2))
	v.obs.DirWanted = false
	found := false
	for range 5 {
		if d := v.Next(at(2)); d.Do == WriteStatus {
			found = true
			v.Done(d, Result{Call: v.Started(d, at(2))}, at(2))
		} else if d.Do == Refresh {
			if err := v.done(d, at(2), time.Unix(0, 0)); err != nil {
				t.Fatal(err)
			}
		} else if d.Do != Wait {
			v.Done(d, Result{Call: v.Started(d, at(2))}, at(2))
		}
	}
	if !found {
		t.Error("the new directory is not told")
	}
}

// Given a removal that hangs, when the next instance's record is saved behind it and that instance
// ends, then the removal's success is not that of the later record, which is removed, too.
func TestARecordThatIsSavedBehindARemovalIsRemoved(t *testing.T) {
	v := inPhase(t, Running)
	v.obs.StaleRecord = true
	remove := Decision{Do: Remove}
	first := v.Started(remove, t0)
	v.Started(Decision{Do: Save}, t0)
	v.reset(t0)
	v.Done(remove, Result{Call: first}, t0)
	d, yes := removeRecord(&v.rec, &v.obs, v.policy, t0)
	if !yes || d.Do != Remove {
		t.Fatalf("%v: the record of the second instance stays", d.Do)
	}
	v.Done(remove, Result{Call: v.Started(remove, t0), Failed: true}, t0)
	if !v.unwritable(t0) {
		t.Error("a removal that failed is not told of")
	}
	v.Done(remove, Result{Call: v.Started(remove, t0)}, t0)
	if d, yes := removeRecord(&v.rec, &v.obs, v.policy, t0); yes {
		t.Errorf("%v again", d.Do)
	}
}

// Given a write of status.json that fails, then it is written again although nothing has changed.
func TestAStatusThatCouldNotBeWrittenIsWrittenAgain(t *testing.T) {
	v := inPhase(t, Running)
	v.obs.Dir.Present = true
	write := Decision{Do: WriteStatus}
	v.Done(write, Result{Call: v.Started(write, t0), Failed: true}, t0)
	if d, _ := writeStatus(&v.rec, &v.obs, v.policy, t0); d.Do != Wait || d.At != t0.Add(statusRetry) {
		t.Errorf("%+v", d)
	}
	then := t0.Add(statusRetry)
	if d, _ := writeStatus(&v.rec, &v.obs, v.policy, then); d.Do != WriteStatus {
		t.Errorf("%+v", d)
	}
	v.Done(write, Result{Call: v.Started(write, then)}, then)
	if d, yes := writeStatus(&v.rec, &v.obs, v.policy, then.Add(time.Hour)); yes {
		t.Errorf("%+v", d)
	}
}
