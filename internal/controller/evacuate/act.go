package evacuate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/internal/controller/mark"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// migrate makes the VM's next migration.
func (r *reconciler) migrate(ctx context.Context, v *vm) (*kubevirt.VirtualMachineInstanceMigration, error) {
	cause := v.VMI.Annotations[evacuation.CauseAnnotation]
	switch {
	case !v.VMI.Marked():
		cause = evacuation.CauseNodeTaint
	case cause == "":
		cause = evacuation.CauseEviction
	}
	m := mark.Migration(&v.Evacuee, cause)
	if err := r.Create(ctx, m); err != nil {
		return nil, fmt.Errorf("migration of VMI %s/%s: %w", v.VMI.Namespace, v.VMI.Name, err)
	}
	r.Log.Info("migration made", "vmi", v.VMI.Namespace+"/"+v.VMI.Name, "migration", m.Name, "node", v.VMI.Node(), "cause", cause)
	r.Events.Eventf(v.VMI, nil, corev1.EventTypeNormal, "EvacuationStarted", "Migrate",
		"migration %s is to move the VM away from node %s (%s)", m.Name, v.VMI.Node(), cause)
	return m, nil
}

// prune drops the oldest of the finished migrations.
func (r *reconciler) prune(ctx context.Context, v *vm) error {
	for _, m := range evacuation.Outdated(v.Migrations) {
		if err := r.remove(ctx, &m); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a migration as it was seen: not one that has begun meanwhile.
func (r *reconciler) remove(ctx context.Context, m *kubevirt.VirtualMachineInstanceMigration) error {
	err := r.Delete(ctx, m, client.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("migration %s/%s: %w", m.Namespace, m.Name, err)
	}
	return nil
}

// takeBack takes the mark of a VM whose node is used again, and its migrations
// that have not begun. The cache says only whether it is worth a look: what is
// taken is decided by what the API server says now.
func (r *reconciler) takeBack(ctx context.Context, v *vm) (changed bool, err error) {
	unmark, _ := evacuation.Unmark(v.facts())
	note := v.unnoted()
	if !unmark && !note && len(evacuation.Withdrawn(v.Evacuee)) == 0 {
		return false, nil
	}
	now, err := r.lookAgain(ctx, v)
	if err != nil {
		return false, err
	}
	if goes, why := evacuation.Unmark(now.facts()); goes {
		r.Log.Info("the mark goes", "vmi", now.VMI.Namespace+"/"+now.VMI.Name, "node", now.VMI.Node(), "why", why)
		if err := r.unmark(ctx, now); err != nil {
			return false, err
		}
		r.Events.Eventf(now.VMI, nil, corev1.EventTypeNormal, "EvacuationCancelled", "Cancel",
			"node %s is used again: the VM stays", now.VMI.Node())
		return true, nil // the next look takes the migrations
	}
	if note && now.unnoted() {
		return false, r.annotate(ctx, now.VMI, map[string]any{evacuation.CordonedAnnotation: evacuation.Yes})
	}
	for _, m := range evacuation.Withdrawn(now.Evacuee) {
		r.Log.Info("migration withdrawn", "vmi", now.VMI.Namespace+"/"+now.VMI.Name, "migration", m.Name)
		if err := r.remove(ctx, &m); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// facts are what the rules want to know of the VM's mark.
func (v *vm) facts() evacuation.MarkFacts {
	return evacuation.MarkFacts{VMI: v.VMI, Strategy: v.Strategy, NodeSchedulable: v.node.schedulable(), LauncherTerminating: v.LauncherTerminating}
}

// unnoted tells of a mark whose node is cordoned and that does not say so.
func (v *vm) unnoted() bool {
	return v.VMI.Marked() && v.node.there && !v.node.schedulable() && v.VMI.Annotations[evacuation.CordonedAnnotation] == ""
}

// lookAgain asks the API server for the VM, its node and its launchers.
func (r *reconciler) lookAgain(ctx context.Context, v *vm) (*vm, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(v.VMI), vmi); err != nil {
		return nil, fmt.Errorf("VMI: %w", err)
	}
	launchers, err := lookup.LaunchersNow(ctx, r.Live, vmi)
	if err != nil {
		return nil, err
	}
	return r.gather(ctx, r.Live, vmi, launchers)
}
