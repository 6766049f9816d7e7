package budget

import (
	"encoding/json"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// desired returns the budget that a VM should have.
func desired(vmi *kubevirt.VirtualMachineInstance, want evacuation.Budget) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: evacuation.BudgetName(string(vmi.UID)),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance",
				// Without blockOwnerDeletion, which needs a right on the VMI's finalizers.
				Name: vmi.Name, UID: vmi.UID, Controller: new(true),
			}},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			// An integer: percentages need a controller with a scale subresource.
			MinAvailable: new(intstr.FromInt32(want.MinAvailable)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: string(vmi.UID)}},
		},
	}
	if want.Migration != "" {
		b.Labels = map[string]string{kubevirt.MigrationNameLabel: want.Migration}
	}
	return b
}

// upToDate reports whether a budget needs no correction.
func upToDate(b, to *policyv1.PodDisruptionBudget) bool {
	return b.Labels[kubevirt.MigrationNameLabel] == to.Labels[kubevirt.MigrationNameLabel] &&
		equality.Semantic.DeepEqual(b.OwnerReferences, to.OwnerReferences) &&
		equality.Semantic.DeepEqual(b.Spec, to.Spec)
}

// correction returns the merge patch that gives a budget, in the version that was read,
// what vmgrace decides about it. Other metadata stays.
func correction(b, to *policyv1.PodDisruptionBudget) ([]byte, error) {
	label := any(nil)
	if name := to.Labels[kubevirt.MigrationNameLabel]; name != "" {
		label = name
	}
	// A merge patch keeps keys that it does not name, so superfluous ones are named.
	selector := map[string]any{}
	if b.Spec.Selector != nil {
		for key := range b.Spec.Selector.MatchLabels {
			selector[key] = nil
		}
	}
	for key, value := range to.Spec.Selector.MatchLabels {
		selector[key] = value
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid": b.UID, "resourceVersion": b.ResourceVersion,
			"labels": map[string]any{kubevirt.MigrationNameLabel: label}, "ownerReferences": to.OwnerReferences,
		},
		"spec": map[string]any{
			"minAvailable": to.Spec.MinAvailable, "maxUnavailable": nil, "unhealthyPodEvictionPolicy": nil,
			"selector": map[string]any{"matchLabels": selector, "matchExpressions": nil},
		},
	})
}
