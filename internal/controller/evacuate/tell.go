package evacuate

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// tell has the VM and its launchers say what happens to them. Nothing is sent
// where they say it already.
func (r *reconciler) tell(ctx context.Context, v *vm, next evacuation.Step) error {
	requested := v.leaves()
	for i := range v.launchers {
		if err := r.tellDescheduler(ctx, &v.launchers[i], requested && v.launchers[i].Spec.NodeName == v.VMI.Node()); err != nil {
			return err
		}
	}
	if !requested && !v.VMI.Marked() {
		if err := r.unexplain(ctx, v.VMI); err != nil {
			return err
		}
	}
	return r.tellVMI(ctx, v, next)
}

// leaves tells whether the VM is asked to leave its node.
func (v *vm) leaves() bool { return v.Requested() && !v.VMI.Final() }

// condition is what a VM that is to leave says of it.
func (v *vm) condition(next evacuation.Step) *kubevirt.Condition {
	now := metav1.Time{Time: v.Now}
	c := &kubevirt.Condition{
		Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionTrue, LastProbeTime: now, LastTransitionTime: now,
		Reason: next.Reason, Message: next.Message,
	}
	if have := v.VMI.Condition(c.Type); have != nil && have.Status == c.Status {
		c.LastTransitionTime = have.LastTransitionTime
	}
	return c
}

func (r *reconciler) tellVMI(ctx context.Context, v *vm, next evacuation.Step) error {
	have := v.VMI.Condition(kubevirt.EvictionRequested)
	switch requested := v.leaves(); {
	case requested && next.Action == evacuation.Nothing: // it is on its way out
		return nil
	case !requested && have == nil:
		return nil
	case !requested:
		return r.patchConditions(ctx, v.VMI, nil)
	case have != nil && have.Status == kubevirt.ConditionTrue && have.Reason == next.Reason && have.Message == next.Message:
		return nil
	}
	if next.Action == evacuation.Blocked {
		r.Log.Warn("VM cannot leave its node", "vmi", v.VMI.Namespace+"/"+v.VMI.Name, "reason", next.Reason, "why", next.Message)
		r.Events.Eventf(v.VMI, nil, corev1.EventTypeWarning, next.Reason, "Evacuate", "%s", next.Message)
	}
	return r.patchConditions(ctx, v.VMI, v.condition(next))
}

// inProgress is KubeVirt's value of the descheduler's annotation.
const inProgress = "kubevirt"

func (r *reconciler) tellDescheduler(ctx context.Context, pod *corev1.Pod, leaves bool) error {
	want := map[string]any{}
	if _, ok := pod.Annotations[kubevirt.RequestEvictOnlyAnnotation]; !ok {
		want[kubevirt.RequestEvictOnlyAnnotation] = ""
	}
	switch _, ok := pod.Annotations[kubevirt.EvictionInProgressAnnotation]; {
	case leaves && !ok:
		want[kubevirt.EvictionInProgressAnnotation] = inProgress
	case !leaves && ok:
		want[kubevirt.EvictionInProgressAnnotation] = nil
	}
	return r.annotate(ctx, pod, want)
}

// unexplain takes the annotations of a mark that has gone.
func (r *reconciler) unexplain(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	// A mark's annotations come before it: they are left alone for a while.
	if vmi.Annotations[evacuation.CordonedAnnotation] == "" || vmi.Condition(kubevirt.EvictionRequested) == nil {
		return nil
	}
	to := vmi.DeepCopy()
	for _, key := range []string{evacuation.CordonedAnnotation, evacuation.CauseAnnotation, kubevirt.EvictionSourceAnnotation} {
		delete(to.Annotations, key)
	}
	// The condition is removed next, by its place: only from the VMI that was read.
	if err := r.Patch(ctx, to, client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("annotations of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	vmi.ResourceVersion = to.ResourceVersion
	return nil
}

// annotate patches annotations of the object as it was seen; nil takes one away.
func (r *reconciler) annotate(ctx context.Context, o client.Object, annotations map[string]any) error {
	if len(annotations) == 0 {
		return nil
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), "annotations": annotations}})
	if err != nil {
		return err
	}
	to, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	if err := r.Patch(ctx, to, client.RawPatch(types.MergePatchType, raw)); err != nil {
		return fmt.Errorf("annotations of %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return nil
}

// patchConditions sets the condition EvictionRequested, or takes it where c is nil.
func (r *reconciler) patchConditions(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, c *kubevirt.Condition) error {
	return patch.Status(ctx, r.Client, vmi, patch.Conditions(vmi, patch.Wanted{Type: kubevirt.EvictionRequested, Is: c})...)
}

// unmark takes the mark that was seen, and no other. A VM that never said that
// it was marked says so with the same patch: by that unexplain knows later that
// its annotations are those of a mark that has gone.
func (r *reconciler) unmark(ctx context.Context, v *vm) error {
	steps := []patch.Operation{{Op: "remove", Path: "/status/evacuationNodeName"}}
	if v.VMI.Condition(kubevirt.EvictionRequested) == nil {
		now := metav1.Time{Time: v.Now}
		steps = append(steps, patch.Conditions(v.VMI, patch.Wanted{Type: kubevirt.EvictionRequested, Is: &kubevirt.Condition{
			Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionFalse, LastProbeTime: now, LastTransitionTime: now,
			Reason: "Cancelled", Message: "the mark was taken back",
		}})...)
	}
	return patch.Status(ctx, r.Client, v.VMI, steps...)
}
