package budget

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// desired is the budget that a VM is to have.
func desired(vmi *kubevirt.VirtualMachineInstance, want evacuation.Budget) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: evacuation.BudgetName(string(vmi.UID)),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance",
				Name: vmi.Name, UID: vmi.UID, Controller: new(true), BlockOwnerDeletion: new(true),
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
func upToDate(b *policyv1.PodDisruptionBudget, vmi *kubevirt.VirtualMachineInstance, want evacuation.Budget) bool {
	to := desired(vmi, want)
	return b.Labels[kubevirt.MigrationNameLabel] == want.Migration &&
		equality.Semantic.DeepEqual(b.OwnerReferences, to.OwnerReferences) &&
		equality.Semantic.DeepEqual(b.Spec, to.Spec)
}
