package taints

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	replacement "github.com/vmgrace/vmgrace/internal/rules/taints"
)

// listed is how many VMs, and how many taints, the status lists at most: the API server
// takes no object that is too large. VMs that are replaced first and the oldest taints are
// listed. After a change of leader the time of a taint that is not listed starts anew.
const listed = 500

// restoreState returns the state that a former leader has persisted. The conditions of VMs
// that are not listed hold theirs.
func restoreState(policy *v1alpha1.EvacuationPolicy) replacement.State {
	s := replacement.State{Clocks: replacement.Clocks{}, VMs: map[string]replacement.Progress{}}
	if policy == nil {
		return s
	}
	for _, t := range policy.Status.Taints {
		s.Clocks[replacement.TaintID{Node: t.Node, Key: t.Key, Effect: t.Effect}] = t.Since.Time
	}
	for _, v := range policy.Status.VMIs {
		key, effect := v.Taint, ""
		if i := strings.LastIndex(v.Taint, ":"); i >= 0 {
			key, effect = v.Taint[:i], v.Taint[i+1:]
		}
		p := replacement.Progress{Node: v.Node, Since: v.Detected.Time}
		if v.Condition == kubevirt.NodeTaintReplacing {
			p.Cause, p.Replacing = replacement.TaintID{Node: v.Node, Key: key, Effect: effect}, v.Since.Time
		}
		if v.Started != nil {
			p.Started = v.Started.Time
		}
		s.VMs[string(v.UID)] = p
	}
	return s
}

// persist writes the state to the policy's status, if it has changed.
func (r *reconciler) persist(ctx context.Context, policy *v1alpha1.EvacuationPolicy, plan *replacement.Plan) error {
	if policy == nil {
		return nil // without a policy there is no state
	}
	before := policy.DeepCopy()
	s := &policy.Status
	s.Taints, s.VMIs, s.VMIsNotListed = taints(plan), nil, 0
	s.TaintsNotListed = int32(len(plan.State.Clocks) - len(s.Taints))
	for i := range plan.VMs {
		switch v := &plan.VMs[i]; {
		case v.Detected == "" && plan.State.VMs[v.VM.UID].Since.IsZero():
		case len(s.VMIs) == listed:
			s.VMIsNotListed++
		default:
			s.VMIs = append(s.VMIs, entry(v, plan.State.VMs[v.VM.UID]))
		}
	}
	if r.policy.Off() {
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionTaintReplacement)
	} else {
		meta.SetStatusCondition(&s.Conditions, r.policyCondition(policy, plan))
	}
	if equality.Semantic.DeepEqual(before.Status, policy.Status) {
		return nil
	}
	err := r.Status().Patch(ctx, policy, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("status of the EvacuationPolicy: %w", err)
	}
	return nil
}

func taints(plan *replacement.Plan) []v1alpha1.NodeTaint {
	all := make([]v1alpha1.NodeTaint, 0, len(plan.State.Clocks))
	for id, since := range plan.State.Clocks {
		all = append(all, v1alpha1.NodeTaint{Node: id.Node, Key: id.Key, Effect: id.Effect, Since: seconds(since)})
	}
	inOrder := func(a, b v1alpha1.NodeTaint) int {
		return strings.Compare(a.Node+" "+a.Key+" "+a.Effect, b.Node+" "+b.Key+" "+b.Effect)
	}
	if len(all) > listed {
		slices.SortFunc(all, func(a, b v1alpha1.NodeTaint) int {
			return cmp.Or(a.Since.Compare(b.Since.Time), inOrder(a, b))
		})
		all = all[:listed]
	}
	slices.SortFunc(all, inOrder)
	return all
}

// seconds rounds a time down to the API's precision.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.UTC().Truncate(time.Second)) }

func entry(v *replacement.Verdict, p replacement.Progress) v1alpha1.TaintedVMI {
	e := v1alpha1.TaintedVMI{
		Namespace: v.VM.Namespace, Name: v.VM.Name, UID: types.UID(v.VM.UID), Node: v.VM.Node, Taint: v.Cause.String(),
		Condition: kubevirt.NodeTaintDetected, Since: seconds(p.Since), Detected: seconds(p.Since), Reason: string(v.Reason),
	}
	if !p.Replacing.IsZero() {
		e.Condition, e.Since = kubevirt.NodeTaintReplacing, seconds(p.Replacing)
	}
	if !v.Due.IsZero() {
		e.Due = new(seconds(v.Due))
	}
	if !p.Started.IsZero() {
		e.Started = new(seconds(p.Started))
	}
	return e
}

// policyCondition reports whether VMs are replaced, and if not, why.
func (r *reconciler) policyCondition(policy *v1alpha1.EvacuationPolicy, plan *replacement.Plan) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionTaintReplacement, Status: metav1.ConditionTrue, Reason: "Watching", ObservedGeneration: policy.Generation,
		Message: fmt.Sprintf("%d of at most %d tainted nodes, %d VMs are being replaced", plan.TaintedNodes, plan.Allowed, plan.InFlight),
	}
	switch {
	case plan.TooMany():
		c.Status, c.Reason = metav1.ConditionFalse, string(replacement.TooMany)
		c.Message = fmt.Sprintf("%d nodes with VMs are tainted, maxTaintedNodes allows %d: no VM is replaced", plan.TaintedNodes, plan.Allowed)
	case r.policy.MaxConcurrent == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "NoneAllowed", "maxConcurrentReplacements is 0: no VM is replaced"
	}
	return c
}

// warn emits an Event, once, when no VM is replaced because too many nodes are tainted.
func (r *reconciler) warn(policy *v1alpha1.EvacuationPolicy, plan *replacement.Plan) {
	before := r.warned
	r.warned = plan.TooMany()
	if before || !r.warned || policy == nil {
		return
	}
	c := r.policyCondition(policy, plan)
	r.Log.Warn("too many nodes are tainted: no VM is replaced", "tainted", plan.TaintedNodes, "allowed", plan.Allowed)
	r.Events.Eventf(policy, nil, corev1.EventTypeWarning, c.Reason, "Replace", "%s", c.Message)
}
