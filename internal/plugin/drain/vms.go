package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/drain"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// vms returns the state of the node's VMs by the UID of the VMI, and of those that have left the
// node by namespace/name of the pod that they have left. vmOf looks a pod's up.
func (n *node) vms(ctx context.Context) (map[string]*drain.VM, error) {
	vmis, err := cachedList(ctx, n, &kubevirt.VirtualMachineInstanceList{})
	if err != nil {
		return nil, err
	}
	if len(vmis.Items) == 0 {
		return nil, nil
	}
	migrations, err := cachedList(ctx, n, &kubevirt.VirtualMachineInstanceMigrationList{})
	if err != nil {
		return nil, err
	}
	targets, err := n.targetPods(ctx)
	if err != nil {
		return nil, err
	}
	moving := Unfinished(vmis.Items, migrations.Items)
	all := map[string]*drain.VM{}
	for i := range vmis.Items {
		v := &vmis.Items[i]
		if s := v.Status.MigrationState; s != nil && s.SourceNode == n.name && v.Node() != n.name {
			all[v.Namespace+"/"+s.SourcePod] = &drain.VM{Name: v.Namespace + "/" + v.Name, Moved: true, Progress: "its VM has moved to node " + v.Node() + ": it ends by itself", Percent: -1}
		}
		if v.Node() == n.name {
			m := moving[v.UID]
			all[string(v.UID)] = vm(v, m)
			if m != nil && evacuation.PhaseOf(m) == kubevirt.MigrationScheduling && targets[string(m.UID)] != nil {
				all[string(v.UID)].Progress += withColon(TargetText(targets[string(m.UID)]))
			}
		}
	}
	return all, nil
}

// Unfinished returns the migrations of VMIs that have not ended, by the UID of the VMI. That of a former
// VMI of the same name is none of them.
func Unfinished(vmis []kubevirt.VirtualMachineInstance, migrations []kubevirt.VirtualMachineInstanceMigration) map[types.UID]*kubevirt.VirtualMachineInstanceMigration {
	named, all := map[string]*kubevirt.VirtualMachineInstance{}, map[types.UID]*kubevirt.VirtualMachineInstanceMigration{}
	for i := range vmis {
		named[vmis[i].Namespace+"/"+vmis[i].Name] = &vmis[i]
	}
	for i := range migrations {
		m := &migrations[i]
		if v := named[m.Namespace+"/"+m.Spec.VMIName]; v != nil && !m.Final() && m.Of(v) {
			all[v.UID] = m
		}
	}
	return all
}

// vmOf returns the VM of a launcher pod, nil if it has none.
func vmOf(vms map[string]*drain.VM, p *corev1.Pod) *drain.VM {
	return cmp.Or(vms[p.Labels[kubevirt.CreatedByLabel]], vms[p.Namespace+"/"+p.Name])
}

func vm(v *kubevirt.VirtualMachineInstance, m *kubevirt.VirtualMachineInstanceMigration) *drain.VM {
	d := &drain.VM{Name: v.Namespace + "/" + v.Name, Marked: v.Marked(), Percent: -1}
	d.Judged = v.Migratable()
	if c := v.Condition(kubevirt.LiveMigratable); c != nil && c.Status == kubevirt.ConditionFalse {
		d.Judged, d.NotMigratable = true, conditionText(c)
	}
	switch c := v.Condition(kubevirt.EvictionRequested); {
	case c == nil || c.Status != kubevirt.ConditionTrue:
	case c.Reason == "NotMigratable" || c.Reason == "NotMigrated" || c.Reason == evacuation.ReasonStuck:
		d.Stuck = conditionText(c)
	default:
		d.Progress = conditionText(c)
	}
	if m == nil {
		return d
	}
	d.Progress = "migration " + string(evacuation.PhaseOf(m))
	if s := m.Status.MigrationState; s != nil && s.Progress != nil {
		d.Percent = int(min(max(s.Progress.Percent, 0), 100))
		d.Progress += fmt.Sprintf(", %d %%, %d MiB left", d.Percent, s.Progress.RemainingMiB)
	}
	return d
}

// conditionText returns the message of a condition, or its reason.
func conditionText(c *kubevirt.Condition) string { return cmp.Or(c.Message, c.Reason) }

// budgets converts budgets for the plan.
func budgets(all []policyv1.PodDisruptionBudget, now time.Time) (some []drain.Budget) {
	for i := range all {
		b := &all[i]
		d := drain.Budget{
			Name: b.Namespace + "/" + b.Name, Observed: b.Status.ObservedGeneration >= b.Generation,
			Desired: b.Status.DesiredHealthy, Expected: b.Status.ExpectedPods, Allowed: b.Status.DisruptionsAllowed,
		}
		if c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition); c != nil && c.Reason == policyv1.SyncFailedReason {
			d.SyncFailed, d.SyncFailedFor = cmp.Or(c.Message, c.Reason), now.Sub(c.LastTransitionTime.Time)
		}
		owner := metav1.GetControllerOf(b)
		if owner == nil && len(b.OwnerReferences) > 0 {
			owner = &b.OwnerReferences[0]
		}
		if owner != nil {
			d.Owner, d.OfVM = owner.Kind+" "+owner.Name, owner.Kind == "VirtualMachineInstance"
		}
		some = append(some, d)
	}
	// A list from the cache is not sorted.
	slices.SortFunc(some, func(a, b drain.Budget) int { return strings.Compare(a.Name, b.Name) })
	return some
}
