// Package move makes VMs leave their nodes: by a mark, or by a migration object.
package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/internal/evacuation"
)

// ErrChanged means that the VMI has changed since it was read.
var ErrChanged = errors.New("the VMI has changed since it was read")

// Set marks the VMI to leave its present node. It writes the annotations that explain
// the mark first: a process that dies in between leaves an unmarked VMI. It fails with
// ErrChanged if the VMI has changed since it was read.
func Set(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	if err := explain(ctx, c, vmi, why); err != nil {
		return err
	}
	if err := patch.HaveStatus(ctx, c, vmi); err != nil {
		return changed(err)
	}
	return changed(patch.Apply(ctx, c, vmi, markPatch(vmi)...))
}

func explain(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	// The resourceVersion keeps the annotations of two concurrent writers from mixing.
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": vmi.UID, "resourceVersion": vmi.ResourceVersion, "annotations": why.Annotations(),
	}})
	if err != nil {
		return err
	}
	to := vmi.DeepCopy()
	if err := c.Patch(ctx, to, client.RawPatch(types.MergePatchType, raw)); err != nil {
		return changed(err)
	}
	vmi.ResourceVersion = to.ResourceVersion
	return nil
}

// markPatch sets the mark, unless the VMI's node or mark has changed since it was read.
func markPatch(vmi *kubevirt.VirtualMachineInstance) []patch.Operation {
	steps := patch.SameNode(vmi)
	if vmi.Status.NodeName == "" {
		steps = append(steps, patch.Operation{Op: "test", Path: "/metadata/labels/kubevirt.io~1nodeName", Value: vmi.Labels[kubevirt.NodeNameLabel]})
	}
	return append(steps, patch.Operation{Op: "add", Path: "/status/evacuationNodeName", Value: vmi.Node()})
}

// TakeBack removes the mark from the VMI that was read. A VMI without the condition
// EvictionRequested gets it with the same patch: the controller of evacuations removes
// annotations only if it is there.
func TakeBack(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, now time.Time) error {
	steps := []patch.Operation{{Op: "remove", Path: "/status/evacuationNodeName"}}
	if at := metav1.NewTime(now); vmi.Condition(kubevirt.EvictionRequested) == nil {
		steps = append(steps, patch.Conditions(vmi, patch.Wanted{Type: kubevirt.EvictionRequested, Is: &kubevirt.Condition{
			Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionFalse, LastProbeTime: at, LastTransitionTime: at,
			Reason: "Cancelled", Message: "the mark was taken back",
		}})...)
	}
	return patch.Status(ctx, c, vmi, steps...)
}

// changed wraps the error of a patch as ErrChanged if the object was not the expected
// one.
func changed(err error) error {
	if patch.Stale(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
