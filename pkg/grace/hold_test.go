package grace

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The shutdown needs what the pod states, or more if the VM's grace period is longer by
// now.
func TestTheLatestMomentOfAHold(t *testing.T) {
	const start, pod = Mono(time.Hour), 500 * time.Second
	for name, c := range map[string]struct {
		allowance, reserve, padding, grace time.Duration
		want                               time.Duration // after the signal
	}{
		"allowance first":           {150 * time.Second, 50 * time.Second, 30 * time.Second, 20 * time.Second, 150 * time.Second},
		"reserve first":             {600 * time.Second, 50 * time.Second, 30 * time.Second, 20 * time.Second, 450 * time.Second},
		"a short padding":           {600 * time.Second, 25 * time.Second, 5 * time.Second, 20 * time.Second, 475 * time.Second},
		"edited, longer":            {600 * time.Second, 50 * time.Second, 30 * time.Second, 100 * time.Second, 370 * time.Second},
		"edited, shorter":           {600 * time.Second, 50 * time.Second, 30 * time.Second, 0, 450 * time.Second},
		"no padding is known":       {600 * time.Second, 0, 0, 20 * time.Second, 478 * time.Second},
		"it needs more than it has": {600 * time.Second, 50 * time.Second, 30 * time.Second, time.Hour, -3130 * time.Second},
	} {
		o := observation{Trigger: true, TriggerByShim: true, TriggerAt: start, Period: Period{Length: c.grace}}
		o.Pod = Pod{
			Created: time.Unix(1, 0), GracePeriod: pod, Deleting: true, DeletionGrace: pod, KillAt: start.Add(pod),
			Allowance: c.allowance, Reserve: c.reserve, Padding: c.padding,
		}
		facts := o.holdFacts(&Record{})
		if got := facts.latest(&Hold{Reason: PreemptionByScheduler, Start: start}).Sub(start); got != c.want {
			t.Errorf("%s: %v after the signal, want %v", name, got, c.want)
		}
	}
}

// An agent that has just started does not know yet which migrations there are.
func TestOnlyAMigrationThatIsKnownToBeOverHasFailed(t *testing.T) {
	const now = Mono(time.Hour)
	h := Hold{Reason: PreemptionByScheduler, Start: now, Until: now.Add(moveAgain / 2), Leaving: true, Moving: true}
	for m, want := range map[Migration]bool{MigrationNone: true, MigrationUnknown: false, MigrationOutgoing: false} {
		o := observation{Migration: m}
		facts := o.holdFacts(&Record{})
		if got := facts.staysHere(&h, now); got != want {
			t.Errorf("migration %d: it stays here: %v", m, got)
		}
	}
}

// A launcher is deleted for any reason and at any time, its VM marked or not, moved or
// not, while agents restart. No guest gets less than its grace period. None is held
// without a reason, or for too long.
func TestNoGuestLosesItsGracePeriodToAHold(t *testing.T) {
	sixtyFourth := make([]int, 64)
	for i := range sixtyFourth {
		sixtyFourth[i] = i
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := newStage(t)
		between := func(what string, from, to time.Duration) time.Duration {
			return from + (to-from)*time.Duration(rapid.SampledFrom(sixtyFourth).Draw(rt, what))/63 // rapid's own numbers are mostly small
		}
		length := time.Duration(rapid.IntRange(0, 40).Draw(rt, "grace period")) * time.Second
		allowance := between("allowance", 0, 90*time.Second)
		needs := length + launcherPadding
		pod := needs + between("pod has more", 0, 120*time.Second)
		s.perform("grace period: " + length.String())
		s.perform("cluster")
		s.perform("the guest does not listen")
		s.perform("the pod may be held for at most: " + allowance.String())
		s.perform("the launcher registers")
		s.perform("a domain appears")
		s.see()
		s.decide()

		type line struct {
			at   time.Duration
			what string
		}
		deleted := 20 * time.Second
		signalled := deleted + between("signalled after", -1500*time.Millisecond, 3*time.Second)
		deletion := rapid.SampledFrom([]string{"preempted", "being deleted"}).Draw(rt, "deletion")
		script := []line{
			{deleted, "the pod is " + deletion + " and killed in: " + pod.String()},
			{signalled, "the launcher is signalled"},
		}
		add := func(what string, from, to time.Duration, lines ...string) {
			if !rapid.Bool().Draw(rt, what) {
				return
			}
			at := between(what+" at", from, to)
			for _, l := range lines {
				script = append(script, line{at, l})
				at += between(l+" lasts", 0, 2*time.Second)
			}
		}
		add("marked", 15*time.Second, 30*time.Second, "the VM is marked")
		add("unmarked", 25*time.Second, 100*time.Second, "the mark is taken away")
		add("migrates", 10*time.Second, 60*time.Second, "the migration begins")
		add("fails", 30*time.Second, 100*time.Second, "the migration fails")
		add("reason overwritten", 20*time.Second, 60*time.Second, "an eviction overwrites the reason")
		add("VMI deleted", 10*time.Second, 100*time.Second, "the VMI is being deleted")
		add("restart", 10*time.Second, 150*time.Second, "the agent dies", "an agent starts")
		add("blind", 10*time.Second, 150*time.Second, "the watches stand still")
		slices.SortStableFunc(script, func(a, b line) int { return cmp.Compare(a.at, b.at) })

		var held Hold
		var heldAt, kill Mono
		checkHeld := func(h Hold) {
			listed := s.begun.Add(time.Second + time.Millisecond) // an agent that starts waits for the first list
			if allowance > 0 && s.now > max(h.Start.Add(allowance+reasonTimeout), listed) || kill != 0 && s.now > kill.Add(time.Millisecond-needs) && !s.still {
				rt.Fatalf("held at %s: %+v", s.clock(s.now), h)
			}
			if h.Reason == "" && s.now > max(h.Start.Add(reasonTimeout+time.Millisecond), listed) || !h.Leaving && s.now.Sub(h.Start) > markTimeout+time.Millisecond {
				rt.Fatalf("held without a reason at %s: %+v", s.clock(s.now), h)
			}
			if h.Reason == "" && s.podKill != Never && s.reason == "" && !s.still {
				rt.Fatalf("held though its pod is deleted for no reason at %s: %+v", s.clock(s.now), h)
			}
			if h.Reason != "" && h.Reason != LauncherSignal && deletion != "preempted" || h.Reason == LauncherSignal && !h.Moving {
				rt.Fatalf("held for %s: %+v", h.Reason, h)
			}
			if h.Reason == LauncherSignal && s.migration != MigrationOutgoing {
				rt.Fatalf("held for a migration that is over: %+v", h)
			}
			if held.UnderWay() && held.Start != h.Start || held.Reason != "" && h.Until > held.Until {
				rt.Fatalf("the hold was %+v, it is %+v", held, h)
			}
		}
		check := func() {
			if s.down {
				return // it catches up when it is back
			}
			r := s.agent.Record()
			if h := r.Hold; h.UnderWay() && r.Phase(s.now) == Held {
				checkHeld(h)
				held, heldAt = h, s.now
			}
			if sd := r.Shutdown; r.ShuttingDown() && (sd.Deadline.Sub(sd.Start) != length || sd.Start < heldAt) {
				rt.Fatalf("held until %s, the grace period is %v instead of %v: %+v", s.clock(heldAt), sd.Deadline.Sub(sd.Start), length, sd)
			}
		}
		for at := Mono(0); at < Mono(400*time.Second); at += Mono(250 * time.Millisecond) {
			for len(script) > 0 && script[0].at <= time.Duration(at) {
				s.playUntil(t0.Add(script[0].at))
				s.perform(script[0].what)
				if kill == 0 && s.podKill != Never {
					kill = s.podKill
				}
				if script[0].what == "an agent starts" && held.Reason != "" {
					s.podKill = s.now.Add(pod) // it sees the deletion as new
				}
				s.see()
				s.decide()
				check()
				script = script[1:]
			}
			s.playUntil(t0 + at)
			check()
		}
		if !s.ended {
			rt.Fatalf("the VM lives on: %+v", s.agent.Record())
		}
	})
}
