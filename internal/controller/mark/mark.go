// Package mark has VMs leave the node that they are on.
package mark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// ErrChanged says that the VMI is not as it was read.
var ErrChanged = errors.New("the VMI changes all the time")

// Set has the VMI leave the node it is on. First the annotations that explain
// it, then the mark: a process that dies between them leaves a VM unmarked. It
// fails with ErrChanged if the VMI is not any more as it was read.
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
	// Only on the object that was read: two that explain at once would mix.
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

// markPatch marks the very VM that was read, on the node where it was then.
func markPatch(vmi *kubevirt.VirtualMachineInstance) []patch.Operation {
	steps := patch.SameNode(vmi)
	if vmi.Status.NodeName == "" {
		steps = append(steps, patch.Operation{Op: "test", Path: "/metadata/labels/kubevirt.io~1nodeName", Value: vmi.Labels[kubevirt.NodeNameLabel]})
	}
	return append(steps, patch.Operation{Op: "add", Path: "/status/evacuationNodeName", Value: vmi.Node()})
}

// changed tells a patch that met another object from one that failed.
func changed(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
