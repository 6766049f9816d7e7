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

// Annotations are those of a mark; "" takes one away that a former mark left.
func (e *Explanation) Annotations() map[string]string {
	m := map[string]string{CauseAnnotation: e.Cause, CordonedAnnotation: "", kubevirt.EvictionSourceAnnotation: ""}
	if e.Descheduler {
		m[kubevirt.EvictionSourceAnnotation] = kubevirt.EvictionSourceDescheduler
	}
	if e.Cordoned {
		m[CordonedAnnotation] = Yes
	}
	return m
}

// Explained reports whether the VMI's annotations say that already.
func (e *Explanation) Explained(vmi *kubevirt.VirtualMachineInstance) bool {
	for key, value := range e.Annotations() {
		if vmi.Annotations[key] != value {
			return false
		}
	}
	return true
}
