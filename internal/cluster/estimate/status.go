package estimate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// listed is how many nodes the status lists at most. The CRD allows no more.
const listed = 100

// Reasons of the condition NoExecuteReady.
const (
	inTime   = "InTime"
	tooMany  = "TooManyVMsPerNode"
	tooShort = "AllowanceTooShort"
)

// persist writes what a look found to the policy's status, if it has changed; nil removes it.
// taint-replacement writes other fields of the same status: the patch has only what is changed
// here, and fails if the policy was changed meanwhile.
func (r *reconciler) persist(ctx context.Context, policy *v1alpha1.EvacuationPolicy, now *look) error {
	if policy == nil {
		return nil
	}
	before := policy.DeepCopy()
	if now == nil {
		policy.Status.NoExecute = nil
		meta.RemoveStatusCondition(&policy.Status.Conditions, v1alpha1.ConditionNoExecuteReady)
	} else {
		all, worst := now.estimate()
		policy.Status.NoExecute = all
		meta.SetStatusCondition(&policy.Status.Conditions, now.condition(policy.Generation, all, worst))
	}
	if equality.Semantic.DeepEqual(before.Status, policy.Status) {
		return nil
	}
	if err := r.Status().Patch(ctx, policy, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("status of the EvacuationPolicy: %w", err)
	}
	r.warn(before, policy)
	return nil
}

// warn emits an Event if the condition has become False.
func (r *reconciler) warn(before, after *v1alpha1.EvacuationPolicy) {
	const kind = v1alpha1.ConditionNoExecuteReady
	if meta.IsStatusConditionFalse(before.Status.Conditions, kind) || !meta.IsStatusConditionFalse(after.Status.Conditions, kind) {
		return
	}
	c := meta.FindStatusCondition(after.Status.Conditions, kind)
	r.Log.Warn("a NoExecute taint would shut VMs down that could be moved", "why", c.Message)
	r.Events.Eventf(after, nil, corev1.EventTypeWarning, c.Reason, "Estimate", "%s", c.Message)
}

// nodeEstimate is the estimate for one node.
type nodeEstimate struct {
	evacuation.Estimate

	node string
	vms  int
}

// estimate returns what the status says of all nodes, and the node on which most VMs would be
// late.
func (l *look) estimate() (s *v1alpha1.NoExecuteEstimate, worst nodeEstimate) {
	s = &v1alpha1.NoExecuteEstimate{MigrationSeconds: int64(l.takes.Seconds()), Measured: l.measured}
	var all []nodeEstimate
	for name, n := range l.nodes {
		if len(n.vms) > 0 {
			all = append(all, nodeEstimate{l.EstimateOf(n.vms, l.takes), name, len(n.vms)})
		}
	}
	slices.SortFunc(all, func(a, b nodeEstimate) int {
		return cmp.Or(cmp.Compare(b.Late+b.NotMovable(), a.Late+a.NotMovable()), cmp.Compare(b.Late, a.Late), cmp.Compare(a.node, b.node))
	})
	for i := range all {
		e := &all[i]
		s.InTime += int32(e.InTime)
		s.Late += int32(e.Late)
		s.NotMovable += int32(e.NotMovable())
		if e.Late > worst.Late {
			worst = *e
		}
		if i >= listed {
			s.NodesNotListed++
			continue
		}
		s.Nodes = append(s.Nodes, v1alpha1.NodeEstimate{
			Name: e.node, VMIs: int32(e.vms), InTime: int32(e.InTime), Late: int32(e.Late), NotMovable: int32(e.NotMovable()), Why: e.Why(),
		})
	}
	return s, worst
}

// condition returns NoExecuteReady. VMs that cannot be moved at all do not count.
func (l *look) condition(generation int64, all *v1alpha1.NoExecuteEstimate, worst nodeEstimate) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionNoExecuteReady, Status: metav1.ConditionTrue, Reason: inTime, ObservedGeneration: generation,
		Message: fmt.Sprintf("each of %d VMs that can be moved would be in time if one node got a NoExecute taint", all.InTime)}
	if all.Late == 0 {
		return c
	}
	c.Status, c.Reason = metav1.ConditionFalse, tooMany
	if worst.Needed == 0 {
		c.Reason = tooShort
	}
	c.Message = fmt.Sprintf("node %s: a NoExecute taint would move %d of its %d VMs in time and %d not: %s; %s",
		worst.node, worst.InTime, worst.vms, worst.Late, l.pace(&worst.Estimate), worst.Advice())
	return c
}

// pace says with which numbers an estimate was made.
func (l *look) pace(e *evacuation.Estimate) string {
	how := "assumed"
	if l.measured {
		how = "measured"
	}
	return fmt.Sprintf("%d migrations at a time, %v each (%s), %v at most", e.Slots, l.takes, how, e.Hold)
}
