//go:build !unit

package cluster_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

// Given a policy with maxAttempts 1. When the VM's migration fails, then the VM is named as
// stuck, and no further migration is made. When the policy says afterAttempts Shutdown,
// then the launcher pod is deleted with its grace period. Otherwise an operator would not
// learn of a VM that cannot leave, or a guest would lose its grace period.
func TestAStuckVMIsNamedAndThenShutDownIfThePolicySaysSo(t *testing.T) {
	w := given(t)
	w.node("n1")
	policy := &v1alpha1.EvacuationPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name}, Spec: v1alpha1.EvacuationPolicySpec{MaxAttempts: new(int32(1))}}
	w.make(policy)
	t.Cleanup(func() { w.must(w.Delete(context.WithoutCancel(t.Context()), policy)) })
	stuck := w.vm("stuck", "n1", kubevirt.StrategyLiveMigrate, migratable)
	w.alone()
	w.mark(stuck)
	w.phase(w.evacuation(stuck), "Failed")
	w.evictionRequested(stuck, "Stuck")
	w.event("stuck", "Stuck", "1 migrations in a row have failed")
	pod := &corev1.Pod{}
	read := func() {
		t.Helper()
		w.must(w.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: "virt-launcher-stuck"}, pod))
	}
	if read(); pod.DeletionTimestamp != nil || len(w.migrations()) != 1 {
		t.Errorf("%d migrations, launcher deleted at %v; want one, and no deletion", len(w.migrations()), pod.DeletionTimestamp)
	}

	w.must(w.Patch(t.Context(), policy, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"afterAttempts":"Shutdown"}}`))))
	w.eventually("the launcher is deleted", func() bool { read(); return pod.DeletionTimestamp != nil })
	if grace := pod.DeletionGracePeriodSeconds; grace == nil || *grace != *pod.Spec.TerminationGracePeriodSeconds {
		t.Errorf("deleted with a grace period of %v, want the pod's own", grace)
	}
	w.event("stuck", "Stuck", "the VM is shut down (afterAttempts)")
	w.evictionRequested(stuck, "ShuttingDown")
}
