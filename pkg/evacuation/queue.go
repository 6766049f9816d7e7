package evacuation

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Ranks of pending migrations: a lower rank starts first.
const (
	rankHeld        = iota // a shutdown is held for it; by HeldUntil
	rankEvacuation         // evacuations
	rankUser               // created by users
	rankDescheduler        // the descheduler's evacuations
)

// Moving is a migration with what its rank depends on.
type Moving struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// Node is the VM's node, or was when the migration started.
	Node string
	// HeldUntil is the latest end of the hold of a shutdown for it, or zero.
	HeldUntil time.Time
}

// vm is namespace/name of the VM.
func (m Moving) vm() string { return m.Migration.Namespace + "/" + m.Migration.Spec.VMIName }

// Start returns the pending migrations that may start, in order: as many as the limits
// allow, and one per VM. Finished migrations in all are ignored.
func Start(all []Moving, s Settings) []Moving {
	var queued []Moving
	moving := map[string]bool{}
	outbound := map[string]int{}
	for _, m := range all {
		switch {
		case m.Migration.Final():
		case pending(m.Migration):
			queued = append(queued, m)
		case !moving[m.vm()]:
			moving[m.vm()] = true
			outbound[m.Node]++
		}
	}
	slices.SortFunc(queued, inOrder)

	var begin []Moving
	for _, m := range queued {
		if len(moving) >= s.PerCluster {
			break
		}
		if moving[m.vm()] || outbound[m.Node] >= s.PerNode {
			continue
		}
		moving[m.vm()] = true
		outbound[m.Node]++
		begin = append(begin, m)
	}
	return begin
}

// Priority returns the priority of an evacuation: lower for the descheduler's.
func Priority(source string) string {
	if source == kubevirt.EvictionSourceDescheduler {
		return kubevirt.PrioritySystemMaintenance
	}
	return kubevirt.PrioritySystemCritical
}

func inOrder(a, b Moving) int {
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		a.HeldUntil.Compare(b.HeldUntil),
		a.Migration.CreationTimestamp.Compare(b.Migration.CreationTimestamp.Time),
		cmp.Compare(a.Migration.Namespace, b.Migration.Namespace),
		cmp.Compare(a.Migration.Name, b.Migration.Name),
	)
}

func rank(m Moving) int {
	priority := ""
	if m.Migration.Spec.Priority != nil {
		priority = *m.Migration.Spec.Priority
	}
	switch {
	case !m.HeldUntil.IsZero():
		return rankHeld
	case priority == kubevirt.PrioritySystemCritical:
		return rankEvacuation
	case priority == kubevirt.PrioritySystemMaintenance:
		return rankDescheduler
	case priority == "" && Evacuates(m.Migration):
		return rankEvacuation
	}
	return rankUser
}
