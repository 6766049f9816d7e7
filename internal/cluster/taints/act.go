package taints

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
	replacement "github.com/vmgrace/vmgrace/internal/rules/taints"
)

// act carries out the decision for a VM. It records what the API server refuses, for a
// later retry. It returns an error if the VM has changed since it was read.
func (r *reconciler) act(ctx context.Context, s *observed, v *replacement.Verdict) error {
	vmi, pod := s.vmis[v.VM.UID], s.pods[v.VM.UID]
	var err error
	switch v.Action {
	case replacement.Nothing:
		return nil
	case replacement.Unmark:
		r.Log.Info("removing the mark: the taint was removed", "vmi", name(vmi), "node", v.VM.Node)
		return r.Mover.Cancel(ctx, vmi)
	case replacement.Mark:
		r.Log.Info("replacing the VM: it is to be moved", "vmi", name(vmi), "node", v.VM.Node, "taint", v.Cause.String())
		err = r.Mover.Move(ctx, vmi, evacuation.Explanation{Cause: evacuation.CauseNodeTaint, External: v.VM.Strategy == kubevirt.StrategyExternal})
	case replacement.Evict:
		r.Log.Info("replacing the VM: evicting its launcher", "vmi", name(vmi), "node", v.VM.Node, "taint", v.Cause.String())
		err = r.evict(ctx, pod)
	}
	progress, known := r.state.VMs[v.VM.UID]
	if !known {
		return err
	}
	progress.Asked, progress.Failed, progress.Why = s.Now, time.Time{}, ""
	switch {
	case err == nil:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "TaintReplacement", "Replace",
			"the VM leaves node %s for its taint %s", v.VM.Node, v.Cause)
	case errors.Is(err, move.ErrChanged):
		return err
	default:
		r.Log.Warn("cannot replace the VM; trying again", "vmi", name(vmi), "error", err)
		progress.Failed, progress.Why = s.Now, oneline.Cut(err.Error(), 200)
	}
	r.state.VMs[v.VM.UID] = progress
	return nil
}

func name(o client.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// evict evicts the launcher through the eviction API, as a drain does: its budget counts.
func (r *reconciler) evict(ctx context.Context, pod *corev1.Pod) error {
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	}
	if err := r.SubResource("eviction").Create(ctx, pod.DeepCopy(), eviction); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("evict %s: %w", name(pod), err)
	}
	return nil
}

// writeConditions writes the VM's conditions about its node's taints, in one patch, unless
// they are up to date.
func (r *reconciler) writeConditions(ctx context.Context, s *observed, v *replacement.Verdict) error {
	vmi := s.vmis[v.VM.UID]
	if !r.Conditions || v.Reason == replacement.NotKnown || v.Action != replacement.Nothing {
		return nil // an action changes the VMI's version: the next reconcile writes them
	}
	progress := r.state.VMs[v.VM.UID]
	steps := patch.Conditions(vmi,
		patch.Wanted{Type: kubevirt.NodeTaintDetected, Is: condition(kubevirt.NodeTaintDetected, string(replacement.Tainted), v.Detected, progress.Since, s.Now)},
		patch.Wanted{Type: kubevirt.NodeTaintReplacing, Is: condition(kubevirt.NodeTaintReplacing, string(v.Reason), v.Replacing, progress.Replacing, s.Now)})
	if len(steps) == 0 {
		return nil
	}
	if v.Replacing != "" && !vmi.ConditionIs(kubevirt.NodeTaintReplacing, kubevirt.ConditionTrue) {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, kubevirt.NodeTaintReplacing, "Replace", "%s", v.Replacing)
	}
	return patch.Status(ctx, r.Client, vmi.DeepCopy(), steps...)
}

// condition returns nil without a message.
func condition(kind, reason, message string, since, now time.Time) *kubevirt.Condition {
	if message == "" {
		return nil
	}
	return &kubevirt.Condition{
		Type: kind, Status: kubevirt.ConditionTrue, Reason: reason, Message: message,
		LastTransitionTime: seconds(since), LastProbeTime: seconds(now),
	}
}
