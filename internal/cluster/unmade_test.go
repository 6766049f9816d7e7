//go:build !unit

package cluster_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Given a quota that refuses budgets, so that only the webhook protects a VM. When the
// controller tries again and again, then one Event reports the reason. Otherwise an
// operator would not know that the VM lacks a budget, or would have an Event for each try.
func TestABudgetThatCannotBeMadeIsAnEventOnce(t *testing.T) {
	w := given(t)
	none := corev1.ResourceList{"count/poddisruptionbudgets.policy": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "nopdb"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	w.make(quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	w.must(w.Status().Update(t.Context(), quota))
	v := w.vm("live", "n1", kubevirt.StrategyLiveMigrate, migratable)
	before := w.refusedBudgets()
	w.alone()

	w.event("live", "NoDisruptionBudget", "the VM has no disruption budget, so only the eviction webhook protects it: ")
	w.event("live", "NoDisruptionBudget", "exceeded quota: nopdb")
	w.eventually("it has tried five times", func() bool { return w.refusedBudgets() >= before+5 })
	var all corev1.EventList
	w.must(w.List(t.Context(), &all, client.InNamespace(w.ns)))
	told := 0
	for i := range all.Items {
		if e := &all.Items[i]; e.Reason == "NoDisruptionBudget" {
			told++
			if e.Series != nil || e.Count > 1 {
				t.Errorf("told again: %+v", e)
			}
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	w.must(w.Delete(t.Context(), quota))
	w.keeps(v, 1)
}
