package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// CauseAnnotation on a migration is the cause of the evacuation. On a VMI it and
// CordonedAnnotation explain a mark that an earlier version has set.
const (
	CauseAnnotation    = "vmgrace.io/evacuation-cause"
	CordonedAnnotation = "vmgrace.io/cordoned"
)

// Causes of an evacuation.
const (
	CauseEviction   = "Eviction"
	CausePreemption = "PreemptionByScheduler"
	CauseNoExecute  = "DeletionByTaintManager"
	CauseNodeTaint  = "NodeTaint"
)

// Explanation of a mark.
type Explanation struct {
	Cause string
	// Descheduler means that the descheduler requested the eviction.
	Descheduler bool
	// Cordoned means that the node was unschedulable or had the drain taint.
	Cordoned bool
	// Tainted means that somebody emptied the node by another taint, as autoscalers do.
	Tainted bool
	// External means that others move the VM. It is for the condition only.
	External bool
}

// ExplanationOf returns the explanation of a VMI's mark, the zero value if it is not marked.
// It is in the status. Earlier versions wrote annotations, as KubeVirt does for the source.
func ExplanationOf(v *kubevirt.VirtualMachineInstance) Explanation {
	if !v.Marked() {
		return Explanation{}
	}
	if m := v.Status.Mark; m != nil && m.NodeName == v.Status.EvacuationNodeName {
		return Explanation{Cause: m.Cause, Descheduler: m.Source == kubevirt.EvictionSourceDescheduler, Cordoned: m.Cordoned, Tainted: m.Tainted}
	}
	return Explanation{
		Cause: v.Annotations[CauseAnnotation], Cordoned: v.Annotations[CordonedAnnotation] != "",
		Descheduler: v.Annotations[kubevirt.EvictionSourceAnnotation] == kubevirt.EvictionSourceDescheduler,
	}
}

// Source returns who requested the eviction: EvictionSourceDescheduler, or "".
func (e *Explanation) Source() string {
	if e.Descheduler {
		return kubevirt.EvictionSourceDescheduler
	}
	return ""
}

// Mark returns the explanation of a mark for this node as it stands in the VMI's status.
func (e *Explanation) Mark(node string) *kubevirt.Mark {
	return &kubevirt.Mark{NodeName: node, Cause: e.Cause, Source: e.Source(), Cordoned: e.Cordoned, Tainted: e.Tainted}
}

// First returns what the condition EvictionRequested says with the mark: what Next says once the
// VM has its migration, which has no name yet.
func (e *Explanation) First() Step {
	if e.External {
		return Step{Action: Wait, Reason: reasonExternal, Message: toBeMovedByOthers}
	}
	return Step{Action: Wait, Reason: reasonMigrating, Message: toBeMigrated}
}

// SaidBy reports whether a condition EvictionRequested says this already. Where all goes well
// that of the mark does: the name of the migration alone is worth no write.
func (s *Step) SaidBy(c *kubevirt.Condition) bool {
	return c != nil && c.Status == kubevirt.ConditionTrue && c.Reason == s.Reason &&
		(c.Message == s.Message || s.Reason == reasonMigrating && c.Message == toBeMigrated)
}

// Reasons and messages that a mark begins with.
const (
	reasonMigrating   = "Migrating"
	toBeMigrated      = "a migration is to move the VM"
	reasonExternal    = "External"
	toBeMovedByOthers = "evictionStrategy is External: whoever watches status.evacuationNodeName has to move the VM"
)
