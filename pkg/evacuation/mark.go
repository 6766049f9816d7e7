package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// Annotations of a marked VMI: why, and whether its node was cordoned.
const (
	CauseAnnotation    = "vmgrace.io/evacuation-cause"
	CordonedAnnotation = "vmgrace.io/cordoned"
	// Yes is the value of CordonedAnnotation.
	Yes = "true"
)

// Causes of an evacuation.
const (
	CauseEviction   = "Eviction"
	CausePreemption = "PreemptionByScheduler"
	CauseNoExecute  = "DeletionByTaintManager"
	CauseNodeTaint  = "NodeTaint"
)

// Explanation is what is told of a mark, in annotations of the VMI.
type Explanation struct {
	Cause string
	// Descheduler: it was the descheduler that asked.
	Descheduler bool
	// Cordoned: the node was unschedulable or had the drain taint.
	Cordoned bool
}

// Annotations are those of a mark, as a merge patch has them: nil removes one that a
// former mark left.
func (e *Explanation) Annotations() map[string]any {
	m := map[string]any{CauseAnnotation: e.Cause, CordonedAnnotation: nil, kubevirt.EvictionSourceAnnotation: nil}
	if e.Descheduler {
		m[kubevirt.EvictionSourceAnnotation] = kubevirt.EvictionSourceDescheduler
	}
	if e.Cordoned {
		m[CordonedAnnotation] = Yes
	}
	return m
}
