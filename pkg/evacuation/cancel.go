package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// MarkFacts is what is known of a VM whose mark may go. All of it is to be had
// by a live look: a cache that is behind must take no mark.
type MarkFacts struct {
	VMI      *kubevirt.VirtualMachineInstance
	Strategy kubevirt.EvictionStrategy // StrategyOf the VMI
	// NodeSchedulable: the VM's node is there, neither cordoned nor tainted to
	// be emptied.
	NodeSchedulable bool
	// LauncherTerminating: the launcher pod is being deleted, so that the VM
	// ends unless it is moved.
	LauncherTerminating bool
}

// cancelRules are read from top to bottom: the first that holds decides.
var cancelRules = []struct {
	reason string
	holds  func(MarkFacts) bool
	goes   bool
}{
	{"NotMarked", func(f MarkFacts) bool { return !f.VMI.Marked() }, false},
	{"External", func(f MarkFacts) bool { return f.Strategy == kubevirt.StrategyExternal }, false},
	{"NotCordonedWhenMarked", func(f MarkFacts) bool { return f.VMI.Annotations[CordonedAnnotation] == "" }, false},
	{"LauncherTerminating", func(f MarkFacts) bool { return f.LauncherTerminating }, false},
	{"NodeNotSchedulable", func(f MarkFacts) bool { return !f.NodeSchedulable }, false},
	{"Uncordoned", func(MarkFacts) bool { return true }, true},
}

// Unmark decides whether the mark of a VM goes because its node is used again.
func Unmark(f MarkFacts) (goes bool, reason string) {
	for _, rule := range cancelRules {
		if rule.holds(f) {
			return rule.goes, rule.reason
		}
	}
	return false, "" // not reached: the last rule always holds
}

// Withdrawn returns the VM's evacuations that have not begun and that nobody
// asks for any more. One that runs goes on.
func Withdrawn(e Evacuee) []kubevirt.VirtualMachineInstanceMigration {
	if e.Requested() || e.LauncherTerminating || e.Strategy == kubevirt.StrategyExternal {
		return nil
	}
	var some []kubevirt.VirtualMachineInstanceMigration
	for _, m := range e.evacuations() {
		if waiting(&m) && m.DeletionTimestamp == nil {
			some = append(some, m)
		}
	}
	return some
}
