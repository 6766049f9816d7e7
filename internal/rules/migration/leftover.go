package migration

import (
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// LeftoverAfter is how long a launcher pod without a VM may take to end by itself.
const LeftoverAfter = 10 * time.Second

// LeftoverFacts holds the facts about a VM's launcher pods.
type LeftoverFacts struct {
	VMI *kubevirt.VirtualMachineInstance
	// Migrations of the VMI, in any phase.
	Migrations []kubevirt.VirtualMachineInstanceMigration
	// FinalSince is when the VM was first seen to have ended; unused if it has not.
	FinalSince time.Time
	Now        time.Time
}

// Leftover is a launcher pod that has outlived its VM: another container than the VM's still
// runs.
type Leftover struct {
	Pod Pod
	Why string
	// Moved means that the VM runs elsewhere, so that the pod needs no grace period for it.
	Moved bool
}

// Leftovers returns the pods to delete, and the time until a new look without an event, 0 if
// none is needed.
func Leftovers(f LeftoverFacts, pods []Pod) (all []Leftover, again time.Duration) {
	for _, p := range pods {
		since, found := f.leftover(&p)
		left := until(since.Add(LeftoverAfter), f.Now, LeftoverAfter)
		switch {
		case found == nil:
		case left <= 0:
			all = append(all, *found)
		case again == 0 || left < again:
			again = left
		}
	}
	return all, again
}

// leftover returns a pod without a VM, and since when. It is nil if the pod has a VM or is
// being deleted.
func (f LeftoverFacts) leftover(p *Pod) (time.Time, *Leftover) {
	if p.Ended || p.Deleting {
		return time.Time{}, nil
	}
	if f.VMI.Final() {
		return f.FinalSince, &Leftover{Pod: *p, Why: fmt.Sprintf("its VM has ended (%s)", f.VMI.Status.Phase)}
	}
	if m := f.movedAway(p); m != nil {
		end := m.Reached(kubevirt.MigrationSucceeded)
		if t := StateOf(m).EndTimestamp; t != nil {
			end = t.Time
		}
		return end, &Leftover{Pod: *p, Moved: true, Why: fmt.Sprintf("its VM has moved to node %s (migration %s)", f.VMI.Node(), m.Name)}
	}
	return time.Time{}, nil
}

// movedAway returns the migration that has moved the VM away from a pod, nil if there is none.
func (f LeftoverFacts) movedAway(p *Pod) *kubevirt.VirtualMachineInstanceMigration {
	if p.Node == "" || f.VMI.Node() == "" || p.Node == f.VMI.Node() {
		return nil
	}
	for i := range f.Migrations {
		m := &f.Migrations[i]
		s := StateOf(m)
		if m.Status.Phase == kubevirt.MigrationSucceeded && s.VMIUID == string(f.VMI.UID) && s.SourcePodUID == p.UID && s.SourceState == kubevirt.SourceGone {
			return m
		}
	}
	return nil
}
