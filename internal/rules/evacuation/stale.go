package evacuation

import (
	"fmt"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// StaleFacts is the state of a VM that decides whether its mark belongs to nobody. The caller
// has to read it from the API server.
type StaleFacts struct {
	VMI      *kubevirt.VirtualMachineInstance
	Strategy kubevirt.EvictionStrategy // StrategyOf the VMI
	// NodeGone means that the node of the mark has no Node object.
	NodeGone bool
	// Migrating means that a migration of the VM has not ended.
	Migrating bool
	// LauncherTerminating means that a launcher pod is being deleted: the VM ends unless it
	// is migrated.
	LauncherTerminating bool
}

// staleRules decides by the first rule that holds.
var staleRules = []struct {
	holds  func(StaleFacts) bool
	remove bool
	why    func(StaleFacts) string
}{
	{func(f StaleFacts) bool { return f.mark() == "" || f.VMI.DeletionTimestamp != nil }, false, nil},
	{func(f StaleFacts) bool { return f.Migrating }, false, nil}, // its end decides about the mark
	{func(f StaleFacts) bool { return f.VMI.Node() != "" && f.VMI.Node() != f.mark() }, true, func(f StaleFacts) string {
		return fmt.Sprintf("it is a mark of node %s, and the VM is on node %s", f.mark(), f.VMI.Node())
	}},
	{func(f StaleFacts) bool { return !f.NodeGone }, false, nil},
	// The two cases in which an uncordon takes back no mark either.
	{func(f StaleFacts) bool { return f.Strategy == kubevirt.StrategyExternal || f.LauncherTerminating }, false, nil},
	{func(StaleFacts) bool { return true }, true, func(f StaleFacts) string {
		return fmt.Sprintf("node %s does not exist, so nobody drains it", f.mark())
	}},
}

// StaleMark decides whether the mark of a VM is removed because it is of no node that the VM
// could leave. That a node does not exist is no proof that the VM has ended: only the mark
// goes.
func StaleMark(f StaleFacts) (remove bool, why string) {
	for _, rule := range staleRules {
		if !rule.holds(f) {
			continue
		}
		if rule.why != nil {
			why = rule.why(f)
		}
		return rule.remove, why
	}
	return false, "" // not reached: the last rule always holds
}

func (f StaleFacts) mark() string { return f.VMI.Status.EvacuationNodeName }
