package patch

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// HaveStatus makes an empty status if a VMI has none: a JSON patch cannot add to a
// missing object. It fails with a conflict if the VMI has changed since it was read. It
// updates vmi's resourceVersion.
func HaveStatus(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance) error {
	if s := &vmi.Status; s.Phase != "" || s.NodeName != "" || s.EvacuationNodeName != "" || len(s.Conditions) > 0 {
		return nil
	}
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": vmi.UID, "resourceVersion": vmi.ResourceVersion}, "status": map[string]any{},
	})
	if err != nil {
		return err
	}
	to := vmi.DeepCopy()
	if err := c.Status().Patch(ctx, to, client.RawPatch(types.MergePatchType, raw)); err != nil {
		return fmt.Errorf("status of VMI %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	vmi.ResourceVersion = to.ResourceVersion
	return nil
}

// SameNode returns the steps that fail unless the VMI is still the same object, on the
// same node and with the same mark.
func SameNode(vmi *kubevirt.VirtualMachineInstance) []Operation {
	return []Operation{
		{Op: "test", Path: "/metadata/uid", Value: vmi.UID},
		{Op: "test", Path: "/status/nodeName", Value: OrNull(vmi.Status.NodeName)},
		{Op: "test", Path: "/status/evacuationNodeName", Value: OrNull(vmi.Status.EvacuationNodeName)},
	}
}

// Apply sends the steps as one JSON patch of the VMI's status. It returns the API
// server's error: invalid if a test fails.
func Apply(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, steps ...Operation) error {
	raw, err := json.Marshal(steps)
	if err != nil {
		return err
	}
	return c.Status().Patch(ctx, vmi.DeepCopy(), client.RawPatch(types.JSONPatchType, raw))
}

// statusTimeout bounds Status.
const statusTimeout = 10 * time.Second

// Status patches the status of a VMI as it was read. It fails with a conflict or as
// invalid if the VMI has changed since. Without steps it writes nothing.
func Status(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, steps ...Operation) error {
	if len(steps) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if err := HaveStatus(ctx, c, vmi); err != nil {
		return err
	}
	steps = append([]Operation{{Op: "test", Path: "/metadata/resourceVersion", Value: vmi.ResourceVersion}}, steps...)
	if err := Apply(ctx, c, vmi, steps...); err != nil {
		return fmt.Errorf("status of VMI %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	return nil
}

// Claim writes which pod is about to become the launcher of a VMI as it was read. Of several at once
// one succeeds; the error of the others is Stale.
func Claim(ctx context.Context, c client.Client, vmi *kubevirt.VirtualMachineInstance, pod string) error {
	return Status(ctx, c, vmi, Operation{Op: "add", Path: "/status/vmgraceClaim", Value: kubevirt.Claim{Pod: pod, At: metav1.Now()}})
}
