package grace

import (
	"testing"
	"time"
)

func podFor(uid, vmi string, age int) Pod {
	return Pod{UID: uid, VMI: vmi, Created: born.Add(time.Duration(age) * time.Hour), KillAt: Never, GracePeriod: time.Hour}
}

func done(p Pod) Pod     { p.Done = true; return p }
func deleting(p Pod) Pod { p.Deleting, p.KillAt = true, at(10); return p }

func TestWhichPodIsTheLauncher(t *testing.T) {
	first, copied := podFor("first", "uid", 1), podFor("copy", "uid", 2)
	for _, c := range []struct {
		name     string
		recorded string // the record's pod, "": there is no record
		shim     shim   // of the one that is looked at
		pods     []Pod
		want     string
	}{
		{"the only one", "", shimUnknown, []Pod{first}, "first"},
		{"of two that nobody knows, the newest", "", shimUnknown, []Pod{first, copied}, "copy"},
		{"of two, the one that lives", "", shimUnknown, []Pod{first, done(copied)}, "first"},
		{"of two, the one that is not being deleted", "", shimUnknown, []Pod{first, deleting(copied)}, "first"},
		{"one that says for whom it was made, before a newer one that does not", "", shimUnknown, []Pod{first, podFor("stray", "", 9)}, "first"},
		{"none made for another VMI", "", shimUnknown, []Pod{podFor("other", "uid-2", 9), first}, "first"},
		{"the recorded one, which lives", "first", shimAlive, []Pod{first, copied}, "first"},
		{"the recorded one, without a shim", "first", shimNone, []Pod{first, copied}, "first"},
		{"the recorded one, being deleted, whose shim lives", "first", shimAlive, []Pod{deleting(first), copied}, "first"},
		{"the next, where the recorded one's shim has ended and it is being deleted", "first", shimNone, []Pod{deleting(first), copied}, "copy"},
		{"the next, where the recorded one is done", "first", shimAlive, []Pod{done(first), copied}, "copy"},
		{"the recorded one, not shown, whose shim lives", "first", shimAlive, []Pod{copied}, "first"},
		{"the next, where the recorded one is not shown and its shim has ended", "first", shimNone, []Pod{copied}, "copy"},
		{"the recorded one, where none is shown", "first", shimNone, nil, "first"},
	} {
		v := empty()
		if c.recorded != "" {
			v = inPhase(t, Running)
			v.rec.UID, v.rec.VMICreated, v.rec.Pod = "uid", born, c.recorded
			v.obs.Pod = first
		}
		v.obs.Looked, v.obs.Shim = true, c.shim
		v.SeeVMI(VMI{State: VMIPresent, UID: "uid", Created: born})
		v.SeePods(c.pods)
		if got := v.Pod().UID; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestDuringAShutdownTheLauncherStaysTheRecords(t *testing.T) {
	v := inPhase(t, ShuttingDown)
	v.rec.Pod, v.obs.Looked, v.obs.Shim = "first", true, shimNone
	v.obs.Pod = podFor("first", "uid", 1)
	v.SeePods([]Pod{done(podFor("first", "uid", 1)), podFor("next", "uid", 2)})
	if got := v.Pod().UID; got != "first" {
		t.Errorf("%q", got)
	}
}

func TestARestartedAgentLooksAtTheRecordedLauncherFirst(t *testing.T) {
	r, _ := guarded(time.Minute)
	r.Pod, r.VMICreated = "first", born
	v := NewVM("ns", "vm", r, &policy)
	v.SeePods([]Pod{podFor("copy", "uid", 2)})
	if got := v.Pod().UID; got != "first" {
		t.Fatalf("%q is followed before anybody has looked", got)
	}
	v.SeeDirectory(registered("uid"), t0, t0)
	if got := v.Pod().UID; got != "first" {
		t.Errorf("%q, though its shim lives", got)
	}
	v.SeeDirectory(Directory{}, at(1), at(1))
	if got := v.Pod().UID; got != "copy" {
		t.Errorf("%q, though it is gone", got)
	}
	// What was seen came from another directory.
	d := v.Next(at(1))
	if d.Do != Follow {
		t.Fatalf("%s by %q", d.Do, d.Rule)
	}
	v.Done(d, Result{}, t0)
	if v.obs.Dir.Present || v.obs.Trigger || v.obs.Shim != shimUnknown || !v.obs.DirWanted {
		t.Errorf("%+v is taken for the new launcher's", v.obs.Dir)
	}
}

func TestWhenKubeletKills(t *testing.T) {
	for _, c := range []struct {
		name      string
		deleted   Mono // with a grace period of 20 s
		killAt    Mono
		triggered Mono // 0: not at all
		byShim    bool
		want      Mono
	}{
		{"as the pod's deletion says", t0, at(20), 0, false, at(20)},
		{"counted from its signal, which came first", at(10), at(30), t0, true, at(20)},
		{"a touch is no signal of kubelet's", at(10), at(30), t0, false, at(30)},
		{"from a signal that comes after the expected kill", at(-15), at(5), at(10), true, at(30)},
		{"not later than the deletion says", t0, at(20), at(15), true, at(20)},
		{"a signal long before the deletion was not for it", at(10.001), at(30.001), t0, true, at(30.001)},
		{"a later deletion counts from when it was seen", t0, at(220), t0, true, at(220)},
	} {
		o := observation{Pod: Pod{Deleting: true, DeletingAt: c.deleted, KillAt: c.killAt, DeletionGrace: 20 * time.Second}}
		o.Trigger, o.TriggerByShim, o.TriggerAt = c.triggered != 0, c.byShim, c.triggered
		if got := o.podKillAt(); got != c.want {
			t.Errorf("%s: t0+%v, want t0+%v", c.name, got.Sub(t0), c.want.Sub(t0))
		}
	}
}

func TestAPodThatWouldBeKilledTooEarlyIsWarnedOfOnce(t *testing.T) {
	v := inPhase(t, Running)
	v.rec.VMICreated = born
	v.obs.Owner.Shown = VMI{State: VMIPresent, UID: "uid", Created: born}
	short := podFor("first", "uid", 1)
	short.GracePeriod = v.PodNeeds() - time.Second
	v.obs.Pod, v.obs.Followed = short, "first"
	d, yes := podTooShort(&v.rec, &v.obs, v.policy, t0)
	if !yes || d.Do != WarnOfPod {
		t.Fatalf("%s", d.Do)
	}
	v.Done(d, Result{}, t0)
	if _, yes := podTooShort(&v.rec, &v.obs, v.policy, t0); yes {
		t.Error("warned of again")
	}
	v.obs.WarnedPod, v.obs.Pod.GracePeriod = "", v.PodNeeds()
	if _, yes := podTooShort(&v.rec, &v.obs, v.policy, t0); yes {
		t.Error("warned of a pod that lives long enough")
	}
	v.obs.Period.Length, v.obs.Pod.GracePeriod = MaxPeriod, MaxPeriod
	if _, yes := podTooShort(&v.rec, &v.obs, v.policy, t0); yes {
		t.Error("warned of a pod that lives as long as one can")
	}
}

func TestAnEndIsToldToTheLauncherOfTheVMThatEnded(t *testing.T) {
	next := Pod{UID: "pod-2", VMI: "uid-2", Created: born.Add(time.Hour), DeletingAt: Never, KillAt: Never, GracePeriod: time.Hour}
	successor := func(v *VM) {
		v.SeeVMI(VMI{State: VMIPresent, UID: "uid-2", Created: born.Add(time.Hour)})
		v.SeePods([]Pod{next})
	}
	for name, given := range map[string]func(t *testing.T) *VM{
		"it has ended by itself": func(*testing.T) *VM {
			v := empty()
			v.SeeVMI(VMI{State: VMIPresent, UID: "uid-1", Created: born})
			v.SeePods([]Pod{{UID: "pod-1", VMI: "uid-1", Created: born, DeletingAt: Never, KillAt: Never, GracePeriod: time.Hour}})
			v.obs.Followed = "pod-1"
			v.SeeDirectory(registered("uid-1"), t0, t0)
			v.SeeDomain(Domain{Instance: Instance{UUID: "u", PID: 5, Start: 1}, Power: PowerOn}, t0)
			settle(t, v, t0)
			v.ProcessGone(at(10))
			return v
		},
		"it never came": func(*testing.T) *VM {
			v := empty()
			v.SeePods([]Pod{{UID: "pod-1", VMI: "uid-1", Created: born, DeletingAt: Never, KillAt: Never, GracePeriod: time.Hour}})
			v.obs.Followed = "pod-1"
			v.DomainAbsent(t0)
			v.SeeDirectory(withTrigger(Directory{Present: true}, 1, ""), t0.Add(-time.Hour), t0)
			v.Done(Decision{Do: Look}, Result{Call: v.Started(Decision{Do: Look}, at(9))}, at(9))
			return v
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Given: the end is being found out, or told.
			v := given(t)
			answered, followed := "", false
			for range 50 {
				d := v.Next(at(10))
				switch d.Do {
				case Explain:
					v.Started(d, at(10))
					v.Done(d, Result{Call: v.Started(d, at(10))}, at(10))
					v.SeeEnd(EndGuest)
				case Finish:
					if err := v.done(d, at(10), time.Unix(0, 0)); err != nil {
						t.Fatal(err)
					}
				case Answer:
					answered = v.obs.Followed + " " + v.Status(at(10)).UID
					v.Done(d, Result{Call: v.Started(d, at(10))}, at(10))
				case Reset:
					if err := v.done(d, at(10), time.Unix(0, 0)); err != nil {
						t.Fatal(err)
					}
				case Follow:
					followed = true
					v.Done(d, Result{}, t0)
				default:
					carryOut(t, v, d, at(10))
				}
				// When: the next launcher appears meanwhile.
				successor(v)
			}
			// Then: the former one was told, and the next one is followed afterwards.
			if answered != "pod-1 uid-1" || !followed || v.obs.Followed != "pod-2" {
				t.Errorf("told in the directory and as %q, then followed %q", answered, v.obs.Followed)
			}
		})
	}
}
