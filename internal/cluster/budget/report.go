package budget

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// reportUnmade emits an Event if the API server refuses a VM's budget, once for each
// reason: a quota, a missing right or a policy lasts until somebody changes it. err is the
// result of creating the budget.
func (r *reconciler) reportUnmade(vmi *kubevirt.VirtualMachineInstance, err error) {
	key := client.ObjectKeyFromObject(vmi)
	if err == nil {
		r.unmade.Delete(key)
		return
	}
	if !refused(err) {
		return
	}
	reason := apierrors.ReasonForError(err)
	if before, _ := r.unmade.Swap(key, reason); before != reason {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "NoDisruptionBudget", "Budget",
			"the VM has no disruption budget, so only the eviction webhook protects it: %.512v", err)
	}
}

// refused reports whether a request was refused for a reason that only somebody else can
// end.
func refused(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, // no answer
		metav1.StatusReasonConflict, metav1.StatusReasonAlreadyExists, // the cache is stale
		metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout, metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable:
		return false
	default:
		return !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	}
}
