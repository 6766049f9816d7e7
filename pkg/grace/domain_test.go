package grace

import (
	"testing"
	"time"
)

var known = Instance{UUID: "u1", PID: 42, Start: 7}

func TestWhichDomainIsAdopted(t *testing.T) {
	unknown := Instance{UUID: "u1"}
	for _, c := range []struct {
		name   string
		former Instance
		seen   Domain
		after  time.Duration
		adopt  bool
	}{
		{"one with a process", Instance{}, Domain{Instance: known}, 0, true},
		{"one that is just starting", Instance{}, Domain{Instance: unknown}, time.Second, false},
		{"one whose process nobody can identify", Instance{}, Domain{Instance: unknown}, identifyTimeout, true},
		{"one with a pid and no start time", Instance{}, Domain{Instance: Instance{UUID: "u1", PID: 42}}, time.Second, false},
		{"one that is ending", Instance{}, Domain{Instance: unknown, Power: PowerEnding}, time.Hour, false},
		{"the one that has just ended", known, Domain{Instance: known}, time.Hour, false},
		{"what libvirt keeps of the one that has ended", known, Domain{Instance: unknown}, identifyTimeout, false},
		{"the same, for longer than libvirt ever does", known, Domain{Instance: unknown}, leaveTimeout, true},
		{"the next one, with the same UUID", known, Domain{Instance: Instance{UUID: "u1", PID: 43, Start: 9}}, 0, true},
	} {
		v := empty()
		v.obs.Former = c.former
		v.SeeDirectory(Directory{Present: true}, t0, t0)
		v.SeeDomain(c.seen, t0)
		v.SeeDomain(c.seen, t0.Add(c.after))
		if d := v.Next(t0.Add(c.after)); (d.Do == Adopt) != c.adopt {
			t.Errorf("%s: %s by %q", c.name, d.Do, d.Rule)
		}
	}
}

func TestADomainThatHasEndedIsNotAskedForBeforeLibvirtLetsGoOfIt(t *testing.T) {
	v := empty()
	v.obs.Former = known
	v.Started(Decision{Do: Look}, t0)
	v.SeeDomain(Domain{Instance: Instance{UUID: "u1"}}, t0)
	if v.obs.LookAt != t0.Add(leaveRetry) {
		t.Errorf("again after %v", v.obs.LookAt.Sub(t0))
	}
	v.SeeDomain(Domain{Instance: Instance{UUID: "u2"}}, t0)
	if v.obs.LookAt != t0.Add(identifyRetry) {
		t.Errorf("a new one again after %v", v.obs.LookAt.Sub(t0))
	}
}

func TestWhatTellsThatAnInstanceIsGone(t *testing.T) {
	unidentified := func(v *VM) { v.rec.Instance = Instance{UUID: "u1"} }
	for _, c := range []struct {
		name  string
		given func(*VM)
		fact  func(*VM)
		gone  bool
	}{
		{"its process has ended", nil, func(v *VM) { v.ProcessGone(t0) }, true},
		{"libvirt does not know the domain", nil, func(v *VM) { v.DomainAbsent(t0) }, false},
		{"libvirt shows another instance", nil, func(v *VM) { v.SeeDomain(Domain{Instance: Instance{UUID: "u2", PID: 43, Start: 9}}, t0) }, false},
		{"libvirt cannot be asked", nil, func(v *VM) { v.DomainUnreadable() }, false},
		{"libvirt's event says so", nil, func(v *VM) { v.Ended(EndGuest, "u1", t0) }, false},
		{"a list leaves it out", nil, func(v *VM) { v.DomainMissingFromList() }, false},
		{"it has no known process, and libvirt knows no domain", unidentified, func(v *VM) { v.DomainAbsent(t0) }, true},
		{"it has no known process, and libvirt shows another UUID", unidentified, func(v *VM) {
			v.SeeDomain(Domain{Instance: Instance{UUID: "u2", PID: 43, Start: 9}}, t0)
		}, true},
		{"it has no known process, and libvirt shows that", unidentified, func(v *VM) { v.SeeDomain(Domain{Instance: known}, t0) }, false},
	} {
		v := inPhase(t, Running)
		if c.given != nil {
			c.given(v)
		}
		c.fact(v)
		if v.Gone() != c.gone {
			t.Errorf("%s: gone %v", c.name, v.Gone())
		}
	}
}

func TestAnEndThatLibvirtTellsOfCostsALookOnlyWhereNobodyWatches(t *testing.T) {
	for _, c := range []struct {
		name    string
		watched bool
		uuid    string
		look    bool
	}{
		{"its process is watched", true, "u1", false},
		{"its process is not", false, "u1", true},
		{"another instance's", true, "u2", true},
	} {
		v := inPhase(t, Running)
		v.obs.Watched = c.watched
		v.Ended(EndCrashed, c.uuid, t0)
		if look := v.obs.LookAt == 0; look != c.look {
			t.Errorf("%s: looked at %v", c.name, look)
		}
		if known := v.obs.End == EndCrashed; known != (c.uuid == "u1") {
			t.Errorf("%s: its end is %q", c.name, v.obs.End)
		}
	}
}

func TestAHintThatWasWrongIsForgotten(t *testing.T) {
	v := inPhase(t, ShuttingDown)
	v.Ended(EndGuest, "u1", t0)
	v.SeeDomain(Domain{Instance: known, Power: PowerOn}, at(1)) // on_poweroff=restart
	if v.obs.End != EndUnknown {
		t.Errorf("it still counts as %q", v.obs.End)
	}
}

func TestAProcessThatCannotBeOpenedIsTriedAgain(t *testing.T) {
	v := inPhase(t, Running)
	v.obs.Watched = false
	d := v.Next(t0)
	if d.Do != Watch {
		t.Fatalf("%s by %q", d.Do, d.Rule)
	}
	v.Done(d, Result{Call: v.Started(d, t0), Failed: true}, t0)
	if d := v.Next(t0.Add(failedRetry - 1)); d.Do == Watch {
		t.Error("tried again at once")
	}
	if d := v.Next(t0.Add(failedRetry)); d.Do != Watch {
		t.Errorf("%s by %q; want another try", d.Do, d.Rule)
	}
}

// Given a look that is under way, when the domain changes, then another look follows.
func TestAChangeDuringALookIsLookedAt(t *testing.T) {
	v := empty()
	started := v.Started(Decision{Do: Look}, t0)
	v.DomainChanged()
	v.Done(Decision{Do: Look}, Result{Call: started}, at(1))
	v.DomainAbsent(at(1))
	settle(t, v, at(1))
	if v.obs.Look.Tries != 2 {
		t.Errorf("looked %d times", v.obs.Look.Tries)
	}
}

// Given a domain that is absent, when looks fail, then it may have come: nobody is told that nothing
// came, before somebody knows.
func TestAFailedLookIsNoAbsence(t *testing.T) {
	v := empty()
	v.DomainAbsent(t0)
	v.SeeDirectory(withTrigger(Directory{Present: true}, 1, ""), t0, t0)
	for now := at(29); now < at(100); now = now.Add(time.Second) {
		for range 20 {
			d := v.Next(now)
			if d.Do == Finish {
				t.Fatalf("%s by %q", d.Do, d.Rule)
			}
			if !carryOut(t, v, d, now) {
				break
			}
			if d.Do == Look {
				v.DomainUnreadable()
			}
		}
	}
}
