//go:build !unit

package cluster_test

import (
	"fmt"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func (w world) budgets() map[string]*policyv1.PodDisruptionBudget {
	w.Helper()
	var all policyv1.PodDisruptionBudgetList
	w.must(w.List(w.Context(), &all, client.InNamespace(w.ns)))
	byName := map[string]*policyv1.PodDisruptionBudget{}
	for i := range all.Items {
		byName[all.Items[i].Name] = &all.Items[i]
	}
	return byName
}

// of returns the VM's budget and how many pods it keeps, 0 without one.
func (w world) of(v *kubevirt.VirtualMachineInstance) (*policyv1.PodDisruptionBudget, int) {
	w.Helper()
	b := w.budgets()["kubevirt-disruption-budget-"+string(v.UID)]
	if b == nil || b.Spec.MinAvailable == nil {
		return b, 0
	}
	return b, b.Spec.MinAvailable.IntValue()
}

func (w world) keeps(v *kubevirt.VirtualMachineInstance, want int) {
	w.Helper()
	w.eventually(fmt.Sprintf("budget of %s keeps %d", v.Name, want), func() bool { _, n := w.of(v); return n == want })
}

func TestBudgetsFollowTheirVMs(t *testing.T) {
	w := given(t)
	none := w.vm("none", "n1", kubevirt.StrategyNone, migratable)
	unstated := w.vm("unstated", "n1", "", migratable)
	live := w.vm("live", "n1", kubevirt.StrategyLiveMigrate, "")
	maybe := w.vm("maybe", "n1", kubevirt.StrategyLiveMigrateIfPossible, "")
	external := w.vm("external", "n1", kubevirt.StrategyExternal, "")
	w.alone()

	w.keeps(live, 1)
	w.keeps(external, 1)
	b, _ := w.of(live)
	if owner := metav1.GetControllerOf(b); owner == nil || owner.UID != live.UID || owner.Kind != "VirtualMachineInstance" {
		t.Errorf("owner: %+v", b.OwnerReferences)
	}
	if b.Spec.Selector.MatchLabels["kubevirt.io/created-by"] != string(live.UID) || b.Spec.MinAvailable.Type != intstr.Int {
		t.Errorf("spec: %+v", b.Spec)
	}
	for _, v := range []*kubevirt.VirtualMachineInstance{none, unstated, maybe} {
		if b, _ := w.of(v); b != nil {
			t.Errorf("%s has a budget", v.Name)
		}
	}

	w.status(maybe, `{"conditions":[`+migratable+`]}`)
	w.keeps(maybe, 1)
	w.status(maybe, `{"conditions":[{"type":"LiveMigratable","status":"False"}]}`)
	w.keeps(maybe, 0)

	// From the start of a migration the budget keeps two pods, until one is left.
	m := w.Migrate("m", "live")
	w.phase(m, "Scheduling")
	w.keeps(live, 2)
	if b, _ := w.of(live); b.Labels["kubevirt.io/migrationName"] != string(m.UID) {
		t.Errorf("labels %v", b.Labels)
	}
	w.launcher(live, "virt-launcher-target", "n2")
	w.phase(m, "Succeeded")
	w.must(w.Delete(t.Context(), m))
	w.keeps(live, 2)
	api.Kubectl(t, "delete", "pod", "-n", w.ns, "virt-launcher-live", "--grace-period=0", "--force")
	w.keeps(live, 1)
	if b, _ := w.of(live); b.Labels["kubevirt.io/migrationName"] != "" {
		t.Errorf("labels %v", b.Labels)
	}

	// The cluster's strategy applies to a VMI that states none, without a restart.
	kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "kubevirt"}}
	kv.Spec.Configuration.EvictionStrategy = new(kubevirt.StrategyLiveMigrate)
	w.make(kv)
	w.keeps(unstated, 1)
	if _, n := w.of(none); n != 0 {
		t.Error("the VMI's own None does not count")
	}
	// An invalid strategy is reported, and the last valid one stays.
	strategy := func(s string) {
		w.must(w.Patch(t.Context(), kv, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"configuration":{"evictionStrategy":`+s+`}}}`))))
	}
	strategy(`"Explode"`)
	w.event("kubevirt", "InvalidSetting", "LiveMigrate stays in force")
	w.keeps(unstated, 1)
	strategy(`null`)
	w.keeps(unstated, 0)

	w.status(external, `{"phase":"Succeeded"}`)
	w.keeps(external, 0)
	w.must(w.Delete(t.Context(), live))
	w.keeps(live, 0)
	w.eventually("no budget is left", func() bool { return len(w.budgets()) == 0 })
}

func TestBudgetsOfOthersAndByHand(t *testing.T) {
	w := given(t)
	v := w.vm("live", "n1", kubevirt.StrategyLiveMigrate, migratable)
	owner := []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: v.Name, UID: v.UID, Controller: new(true)}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"kubevirt.io/created-by": string(v.UID)}}
	older := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "kubevirt-disruption-budget-x7k2p", OwnerReferences: owner},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: selector}}
	w.make(older)
	foreign := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "other-owner"},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubevirt.io": "virt-launcher"}}}}
	w.make(foreign)
	w.alone()

	w.keeps(v, 1)
	w.eventually("an older controller's goes, the foreign one stays", func() bool {
		all := w.budgets()
		return len(all) == 2 && all["other-owner"] != nil
	})
	w.event("live", "ForeignDisruptionBudget", "other-owner")

	name := "kubevirt-disruption-budget-" + string(v.UID)
	for what, patch := range map[string]string{
		"minAvailable":   `{"spec":{"minAvailable":0}}`,
		"maxUnavailable": `{"spec":{"minAvailable":null,"maxUnavailable":"50%"}}`,
		"selector":       `{"spec":{"selector":{"matchLabels":{"kubevirt.io/created-by":"nobody"}}}}`,
		"owner":          `{"metadata":{"ownerReferences":null}}`,
		"another owner":  `{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"other","uid":"00000000-0000-0000-0000-000000000000"}]}}`,
		"unhealthy pods": `{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`,
		"label":          `{"metadata":{"labels":{"kubevirt.io/migrationName":"none"}}}`,
	} {
		w.must(w.Patch(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}},
			client.RawPatch(types.MergePatchType, []byte(patch))))
		w.eventually(what+" is put right", func() bool {
			b, n := w.of(v)
			return n == 1 && b.Spec.MaxUnavailable == nil && b.Spec.UnhealthyPodEvictionPolicy == nil && len(b.Labels) == 0 &&
				b.Spec.Selector.MatchLabels["kubevirt.io/created-by"] == string(v.UID) && len(b.OwnerReferences) == 1 && b.OwnerReferences[0].UID == v.UID
		})
	}
	b, _ := w.of(v)
	w.must(w.Delete(t.Context(), b))
	w.keeps(v, 1)
}
