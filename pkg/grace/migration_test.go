package grace

import "testing"

func TestAGuestThatArrivesIsNotGuardedYet(t *testing.T) {
	present := observation{Domain: domainPresent, Looked: true, Dir: Directory{Present: true}, Power: PowerPaused}
	for name, c := range map[string]struct {
		migration Migration
		power     Power
		guarded   bool
	}{
		"no migration":                      {MigrationNone, PowerPaused, true},
		"it arrives":                        {MigrationIncoming, PowerPausedOther, false},
		"it has arrived, and is paused":     {MigrationIncoming, PowerPaused, false},
		"it leaves":                         {MigrationOutgoing, PowerOn, true},
		"nobody has told yet, and it runs":  {MigrationUnknown, PowerOn, true},
		"nobody has told yet, it is paused": {MigrationUnknown, PowerPaused, false},
	} {
		o := present
		o.Migration, o.Power = c.migration, c.power
		if d := decide(&Record{}, &o, &Policy{}, 0); (d.Do == Adopt) != c.guarded {
			t.Errorf("%s: %s; want it guarded: %v", name, d.Do, c.guarded)
		}
	}
}

func TestAVMThatHasMovedIsMigratedAndNotLost(t *testing.T) {
	for name, c := range map[string]struct {
		migration Migration
		end       End
		want      Outcome
	}{
		"by a migration of ours":         {MigrationOutgoing, EndMoved, Migrated},
		"by one that nobody told of yet": {MigrationUnknown, EndMoved, Migrated},
		"by somebody else":               {MigrationNone, EndMoved, Lost},
		"it crashed while it was moved":  {MigrationOutgoing, EndCrashed, Lost},
	} {
		o := observation{Recorded: true, OnDisk: true, Gone: true, End: c.end, Migration: c.migration}
		r := Record{Namespace: "ns", Name: "vm"}
		d := decide(&r, &o, &Policy{}, Mono(movedTimeout))
		if d.Do != Finish || d.Outcome != c.want || d.Cause != "" {
			t.Errorf("%s: %s, %s for %q; want %s without a cause", name, d.Do, d.Outcome, d.Cause, c.want)
		}
	}
}

func TestTheRecordOfAGuestThatMovesStaysUntilTheOtherNodeWasTold(t *testing.T) {
	r := Record{Instance: Instance{UUID: "u1", PID: 42, Start: 7}}
	for name, c := range map[string]struct {
		o    observation
		held bool
	}{
		"it was not told":        {observation{Ending: &Ending{Outcome: Migrated}, Migration: MigrationOutgoing}, true},
		"nobody knows yet":       {observation{Ending: &Ending{Outcome: Migrated}, Migration: MigrationUnknown}, true},
		"it was told":            {observation{Ending: &Ending{Outcome: Migrated}}, false},
		"it has not moved":       {observation{Ending: &Ending{Outcome: Lost}, Migration: MigrationOutgoing}, false},
		"the next one runs here": {observation{Ending: &Ending{Outcome: Migrated}, Migration: MigrationOutgoing, Domain: domainPresent, Instance: Instance{UUID: "u1", PID: 43, Start: 8}}, false},
	} {
		if _, held := moving(&r, &c.o, nil, 0); held != c.held {
			t.Errorf("%s: kept %v, want %v", name, held, c.held)
		}
	}
}

func TestWhetherAGuestHasMovedItsMigrationSays(t *testing.T) {
	gone := observation{Recorded: true, OnDisk: true, Gone: true, GoneAt: 5, Looked: true, End: EndKilled, Migration: MigrationOutgoing}
	if d, _ := stopped(&Record{}, &gone, nil, 6); d.Do == Finish {
		t.Errorf("%+v before the migration has said so", d)
	}
	unheard := gone // by an agent that has just started
	unheard.Migration, unheard.End = MigrationUnknown, EndExited
	if d, _ := stopped(&Record{}, &unheard, nil, 6); d.Do == Finish {
		t.Errorf("%+v before the migrations were listed", d)
	}
	unheard.End = EndGuest
	if d, _ := stopped(&Record{}, &unheard, nil, 6); d.Do != Finish || d.Outcome != AlreadyStopped {
		t.Errorf("%+v of a guest that has powered off", d)
	}
	if d, _ := stopped(&Record{}, &gone, nil, gone.GoneAt.Add(movedTimeout)); d.Do != Finish || d.Outcome != Lost {
		t.Errorf("%+v when it does not", d)
	}
	gone.End = EndMoved
	if d, _ := stopped(&Record{}, &gone, nil, 6); d.Do != Finish || d.Outcome != Migrated {
		t.Errorf("%+v of a guest that has moved", d)
	}
}

// libvirt first reports that it destroyed the rest.
func TestAGuestThatHasMovedHasMovedWhateverBecameOfItsRest(t *testing.T) {
	r := Record{Name: "vm", Instance: Instance{UUID: "u1", PID: 42, Start: 7}}
	v := NewVM("ns", "vm", r, &Policy{})
	for _, end := range []End{EndDestroyed, EndMoved, EndDestroyed} {
		v.Ended(end, "u1", t0)
	}
	if v.obs.End != EndMoved {
		t.Errorf("its end is %q", v.obs.End)
	}
}
