package grace

import (
	"errors"
	"time"
)

// Migration is what a live migration has to do with a domain on this node.
type Migration int

// The migrations. The zero value is "none": agents without migrations have no
// other.
const (
	MigrationNone Migration = iota
	// MigrationUnknown: nobody has told yet which migrations there are.
	MigrationUnknown
	MigrationOutgoing
	// MigrationIncoming: until it is over the guest is not to run here.
	MigrationIncoming
)

// movedTimeout is how long a migration that is under way is waited for to say
// whether an instance that is gone has moved.
const movedTimeout = 30 * time.Second

// Arrival is what is known of a guest that comes by a migration, before the API server
// shows its VMI as this node's: that VMI's UID, and the grace period that it stated.
// It is zero where nothing is known.
type Arrival struct{ UID, Grace string }

// period stands in for the VMI, as the record of the node that it comes from.
func (a *Arrival) period(uid string) Period {
	if length, err := ParseSeconds(a.Grace); uid == a.UID && (err == nil || errors.Is(err, ErrTooLong)) {
		return Period{Length: length, Source: SourceVMI}
	}
	return Period{}
}

// SeeMigration is told what a migration has to do with the domain now. What it said of
// a guest that comes counts for this instance.
func (v *VM) SeeMigration(m Migration, a Arrival) {
	if a != (Arrival{}) {
		v.obs.Arrival = a
	}
	if v.obs.Migration != m {
		v.obs.Migration = m
		v.DomainChanged()
	}
}

// moving keeps the record of a guest that has moved: the other node lets it run once
// it hears that it has left here, and an agent that was killed before it said so
// knows that from the record alone.
func moving(r *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	open := o.Migration == MigrationOutgoing || o.Migration == MigrationUnknown
	another := o.Domain == domainPresent && o.Instance != r.Instance
	if o.Ending == nil || o.Ending.Outcome != Migrated || !open || another {
		return next()
	}
	return waitUntil(Never)
}
