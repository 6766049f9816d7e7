package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// MarkFacts is the state of a VM that the removal of its mark depends on. The caller has
// to read it from the API server: a stale cache must not remove a mark.
type MarkFacts struct {
	VMI      *kubevirt.VirtualMachineInstance
	Strategy kubevirt.EvictionStrategy // StrategyOf the VMI
	// NodeSchedulable means that the VM's node exists, is not cordoned and does not have
	// the drain taint.
	NodeSchedulable bool
	// NodeTainted means that somebody empties the node by another taint.
	NodeTainted bool
	// LauncherTerminating means that the launcher pod is being deleted: the VM ends unless
	// it is migrated.
	LauncherTerminating bool
}

// ReasonEnded is the reason of Unmark where there is nothing to move.
const ReasonEnded = "Ended"

// cancelRules decides by the first rule that holds.
var cancelRules = []struct {
	reason string
	holds  func(MarkFacts) bool
	remove bool
}{
	{"NotMarked", func(f MarkFacts) bool { return !f.VMI.Marked() }, false},
	{ReasonEnded, func(f MarkFacts) bool { return f.VMI.Final() }, true},
	{"External", func(f MarkFacts) bool { return f.Strategy == kubevirt.StrategyExternal }, false},
	{"NotCordonedWhenMarked", func(f MarkFacts) bool { why := ExplanationOf(f.VMI); return !why.Cordoned && !why.Tainted }, false},
	{"LauncherTerminating", func(f MarkFacts) bool { return f.LauncherTerminating }, false},
	{"NodeNotSchedulable", func(f MarkFacts) bool { return !f.NodeSchedulable }, false},
	{"NodeTainted", func(f MarkFacts) bool { return f.NodeTainted && !ExplanationOf(f.VMI).Cordoned }, false},
	{"Uncordoned", func(MarkFacts) bool { return true }, true},
}

// Unmark decides whether the mark of a VM is removed because its node is schedulable again, or the VM
// has ended.
func Unmark(f MarkFacts) (remove bool, reason string) {
	for _, rule := range cancelRules {
		if rule.holds(f) {
			return rule.remove, rule.reason
		}
	}
	return false, "" // not reached: the last rule always holds
}

// Withdrawn returns the VM's evacuations that are no longer requested, or no longer wanted by its
// evictionStrategy, and are pending, or have a target pod that only keeps an eviction from the VM: the
// scheduler finds no node for it, or the VM is not to be moved. Others continue.
func Withdrawn(e Evacuee) []kubevirt.VirtualMachineInstanceMigration {
	unwanted := e.Strategy == kubevirt.StrategyNone
	if e.Requested() && !unwanted || e.LauncherTerminating || e.Strategy == kubevirt.StrategyExternal {
		return nil
	}
	var some []kubevirt.VirtualMachineInstanceMigration
	for _, m := range e.evacuations() {
		stuck := PhaseOf(&m) == kubevirt.MigrationScheduling && (e.Unschedulable != "" || unwanted)
		if (pending(&m) || stuck) && m.DeletionTimestamp == nil {
			some = append(some, m)
		}
	}
	return some
}
