package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// Annotations of a marked VMI: the cause, and whether its node was cordoned.
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

// Explanation of a mark, for annotations of the VMI.
type Explanation struct {
	Cause string
	// Descheduler means that the descheduler requested the eviction.
	Descheduler bool
	// Cordoned means that the node was unschedulable or had the drain taint.
	Cordoned bool
}

// Annotations returns the annotations as part of a merge patch. nil removes an
// annotation of a former mark.
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
