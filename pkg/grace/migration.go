package grace

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

// SeeMigration is told what a migration has to do with the domain now.
func (v *VM) SeeMigration(m Migration) {
	if v.obs.Migration != m {
		v.obs.Migration = m
		v.DomainChanged()
	}
}
