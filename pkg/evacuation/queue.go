package evacuation

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Ranks of migrations that wait for their turn, the first first.
const (
	rankHeld        = iota // a shutdown is held for it: by latest moment
	rankEvacuation         // somebody empties a node
	rankUser               // somebody asked for it
	rankDescheduler        // the descheduler would like to have it elsewhere
)

// Moving is a migration with what its turn depends on.
type Moving struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// Node that the VM is on, or was on when the migration began.
	Node string
	// HeldUntil is the latest moment of a shutdown that is held for it, or zero.
	HeldUntil time.Time
}

// vm is namespace/name of the VM that is moved.
func (m Moving) vm() string { return m.Migration.Namespace + "/" + m.Migration.Spec.VMIName }

// Start returns those of the waiting migrations that may begin, in the order in
// which they do: as many as the limits leave room for, never a second one of a
// VM. Finished migrations in all are ignored.
func Start(all []Moving, s Settings) []Moving {
	var waits []Moving
	moving := map[string]bool{}
	outbound := map[string]int{}
	for _, m := range all {
		switch {
		case m.Migration.Final():
		case waiting(m.Migration):
			waits = append(waits, m)
		case !moving[m.vm()]:
			moving[m.vm()] = true
			outbound[m.Node]++
		}
	}
	slices.SortFunc(waits, inOrder)

	var begin []Moving
	for _, m := range waits {
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

// Priority of an evacuation: the descheduler's can wait.
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
