package grace

import (
	"errors"
	"time"
)

// Migration is the role of a domain on this node in a live migration.
type Migration int

// The migrations. The zero value is "none": agents without migrations use no other.
const (
	MigrationNone Migration = iota
	// MigrationUnknown means that nobody has listed the migrations yet.
	MigrationUnknown
	MigrationOutgoing
	// MigrationIncoming means that the guest must not run here until the migration is
	// over.
	MigrationIncoming
)

// movedTimeout is how long an instance that is gone waits for its migration to tell
// whether it has moved.
const movedTimeout = 30 * time.Second

// Arrival is what is known of a guest that arrives by a migration: its VMI's UID, and the
// grace period that the VMI stated. It is used until the API server shows the VMI on this
// node. It is zero if nothing is known.
type Arrival struct{ UID, Grace string }

// period returns the stated grace period if uid is the arriving VMI's, zero otherwise.
func (a *Arrival) period(uid string) Period {
	if length, err := ParseSeconds(a.Grace); uid == a.UID && (err == nil || errors.Is(err, ErrTooLong)) {
		return Period{Length: length, Source: SourceVMI}
	}
	return Period{}
}

// SeeMigration takes the domain's role in a migration. A non-zero Arrival stays valid for
// this instance.
func (v *VM) SeeMigration(m Migration, a Arrival) {
	if a != (Arrival{}) {
		v.obs.Arrival = a
	}
	if v.obs.Migration != m {
		v.obs.Migration = m
		v.DomainChanged()
	}
}

// moving keeps the record of a guest that has moved. The other node lets the guest run
// once this node says that it has left. An agent that was killed before it said so knows
// that from the record alone.
func moving(r *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	open := o.Migration == MigrationOutgoing || o.Migration == MigrationUnknown
	another := o.Domain == domainPresent && o.Instance != r.Instance
	if o.Ending == nil || o.Ending.Outcome != Migrated || !open || another {
		return next()
	}
	return waitUntil(Never)
}
