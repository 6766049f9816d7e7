// Package move makes VMs leave their nodes: by a mark, or by a migration object.
package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// ErrChanged means that the VMI has changed since it was read.
var ErrChanged = errors.New("the VMI has changed since it was read")

// Set marks the VMI to leave its present node. The mark, its explanation and the condition
// EvictionRequested are one patch. It fails with ErrChanged if the VMI has changed since it
// was read, so that vmi may come from a cache that is behind.
func Set(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	return changed(patch.Status(ctx, c, vmi, markPatch(vmi, why, time.Now())...))
}

// Annotate makes KubeVirt's annotation of a mark that was set say who requested the eviction, and
// nothing where that is nobody in particular.
func Annotate(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	if vmi.Annotations[kubevirt.EvictionSourceAnnotation] == why.Source() {
		return nil
	}
	return patch.Metadata(ctx, c, vmi.DeepCopy(), "annotations", map[string]any{kubevirt.EvictionSourceAnnotation: patch.OrNull(why.Source())})
}

// markPatch returns the steps of a mark. patch.Status adds the test of the resourceVersion.
func markPatch(vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation, now time.Time) []patch.Operation {
	steps := append(patch.SameNode(vmi),
		patch.Operation{Op: "add", Path: "/status/evacuationNodeName", Value: vmi.Node()}, Explain(vmi, why))
	if vmi.ConditionIs(kubevirt.EvictionRequested, kubevirt.ConditionTrue) {
		return steps // what it says may be more recent: a mark is made anew
	}
	return append(steps, patch.Conditions(vmi, patch.Wanted{Type: kubevirt.EvictionRequested, Is: Requested(why.First(), now)})...)
}

// Requested returns the condition EvictionRequested that says a step.
func Requested(step evacuation.Step, now time.Time) *kubevirt.Condition {
	at := metav1.Time{Time: now}
	return &kubevirt.Condition{
		Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionTrue, LastProbeTime: at, LastTransitionTime: at,
		Reason: step.Reason, Message: step.Message,
	}
}

// Explain returns the step that explains the mark for the VMI's node.
func Explain(vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) patch.Operation {
	return patch.Operation{Op: "add", Path: "/status/vmgraceMark", Value: why.Mark(vmi.Node())}
}

// Unset returns the steps that remove a mark and its explanation.
func Unset(vmi *kubevirt.VirtualMachineInstance) (steps []patch.Operation) {
	if vmi.Status.EvacuationNodeName != "" {
		steps = append(steps, patch.Operation{Op: "remove", Path: "/status/evacuationNodeName"})
	}
	if vmi.Status.Mark != nil {
		steps = append(steps, patch.Operation{Op: "remove", Path: "/status/vmgraceMark"})
	}
	return steps
}

// TakeBack removes the mark from the VMI that was read. A VMI with annotations of a mark, and without
// the condition EvictionRequested, gets it with the same patch: the controller of evacuations removes
// the annotations only if it is there.
func TakeBack(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, now time.Time) error {
	steps := Unset(vmi)
	if at := metav1.NewTime(now); !Annotated(vmi) {
		steps = append(steps, patch.Conditions(vmi, patch.Wanted{Type: kubevirt.EvictionRequested})...)
	} else if vmi.Condition(kubevirt.EvictionRequested) == nil {
		steps = append(steps, patch.Conditions(vmi, patch.Wanted{Type: kubevirt.EvictionRequested, Is: &kubevirt.Condition{
			Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionFalse, LastProbeTime: at, LastTransitionTime: at,
			Reason: "Cancelled", Message: "the mark was taken back",
		}})...)
	}
	return patch.Status(ctx, c, vmi, steps...)
}

// Annotated reports whether a VMI has an annotation of a mark.
func Annotated(vmi *kubevirt.VirtualMachineInstance) bool {
	a := vmi.Annotations
	return a[evacuation.CordonedAnnotation] != "" || a[evacuation.CauseAnnotation] != "" || a[kubevirt.EvictionSourceAnnotation] != ""
}

// changed wraps the error of a patch as ErrChanged if the object was not the expected
// one.
func changed(err error) error {
	if patch.Stale(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
