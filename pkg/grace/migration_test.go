package grace

import "testing"

func TestAGuestThatArrivesIsNotGuardedYet(t *testing.T) {
	present := Observation{Domain: DomainPresent, Looked: true, Ours: true, Power: PowerPaused}
	for name, c := range map[string]struct {
		migration Migration
		power     Power
		guarded   bool
	}{
		"no migration":                      {MigrationNone, PowerPaused, true},
		"it arrives":                        {MigrationIncoming, PowerHeld, false},
		"it has arrived, and is paused":     {MigrationIncoming, PowerPaused, false},
		"it leaves":                         {MigrationOutgoing, PowerOn, true},
		"nobody has told yet, and it runs":  {MigrationUnknown, PowerOn, true},
		"nobody has told yet, it is paused": {MigrationUnknown, PowerPaused, false},
	} {
		o := present
		o.Migration, o.Power = c.migration, c.power
		if d := Decide(&Record{}, &o, &Policy{}, 0); (d.Do == Adopt) != c.guarded {
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
		o := Observation{Recorded: true, OnDisk: true, Gone: true, End: c.end, Migration: c.migration}
		r := Record{Namespace: "ns", Name: "vm"}
		d := Decide(&r, &o, &Policy{}, Mono(lookTimeout))
		if d.Do != Finish || d.Outcome != c.want || d.Cause != "" {
			t.Errorf("%s: %s, %s for %q; want %s without a cause", name, d.Do, d.Outcome, d.Cause, c.want)
		}
	}
}
