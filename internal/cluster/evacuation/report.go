package evacuation

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// report writes the progress to the VMI. It sends nothing if that is up to date.
func (r *reconciler) report(ctx context.Context, v *move.VM, next evacuation.Step) error {
	if v.VMI.Marked() { // the webhook may have ended between the mark and its annotation
		if err := move.Annotate(ctx, r.Client, v.VMI, evacuation.ExplanationOf(v.VMI)); err != nil {
			return err
		}
	}
	if !evacuating(v) && !v.VMI.Marked() {
		if err := r.removeMarkAnnotations(ctx, v.VMI); err != nil {
			return err
		}
	}
	return r.reportOnVMI(ctx, v, next)
}

// evacuating reports whether the VM is to leave its node and is not final.
func evacuating(v *move.VM) bool { return v.Requested() && !v.VMI.Final() }

// condition returns the VMI's condition EvictionRequested.
func condition(v *move.VM, next evacuation.Step) *kubevirt.Condition {
	c := move.Requested(next, v.Now)
	if have := v.VMI.Condition(c.Type); have != nil && have.Status == c.Status {
		c.LastTransitionTime = have.LastTransitionTime
	}
	return c
}

func (r *reconciler) reportOnVMI(ctx context.Context, v *move.VM, next evacuation.Step) error {
	have := v.VMI.Condition(kubevirt.EvictionRequested)
	switch requested := evacuating(v); {
	case requested && next.Action == evacuation.Nothing: // it is being deleted
		return nil
	case !requested:
		return r.removeReport(ctx, v.VMI)
	case next.SaidBy(have):
		return nil
	}
	if next.Action == evacuation.Blocked {
		r.Log.Warn("VM cannot leave its node", "vmi", v.VMI.Namespace+"/"+v.VMI.Name, "reason", next.Reason, "why", next.Message)
		r.Events.Eventf(v.VMI, nil, corev1.EventTypeWarning, next.Reason, "Evacuate", "%s", next.Message)
	}
	return patch.Status(ctx, r.Client, v.VMI, patch.Conditions(v.VMI, patch.Wanted{Type: kubevirt.EvictionRequested, Is: condition(v, next)})...)
}

// removeReport removes the condition of a mark that was removed, and what is left of its
// explanation.
func (r *reconciler) removeReport(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	steps := patch.Conditions(vmi, patch.Wanted{Type: kubevirt.EvictionRequested})
	if vmi.Status.EvacuationNodeName == "" {
		steps = append(steps, move.Unset(vmi)...)
	}
	return patch.Status(ctx, r.Client, vmi, steps...)
}

// removeMarkAnnotations removes the annotations of a mark that was removed.
func (r *reconciler) removeMarkAnnotations(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	// Earlier versions wrote a mark's annotations before the mark. Without the condition they
	// may belong to a mark that is about to be set.
	if !move.Annotated(vmi) || vmi.Condition(kubevirt.EvictionRequested) == nil {
		return nil
	}
	// The next patch removes the condition by its index, so the VMI must be as it was
	// read.
	return patch.MetadataAsRead(ctx, r.Client, vmi, "annotations", map[string]any{
		evacuation.CordonedAnnotation: nil, evacuation.CauseAnnotation: nil, kubevirt.EvictionSourceAnnotation: nil,
	})
}
