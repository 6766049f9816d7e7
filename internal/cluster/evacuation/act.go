package evacuation

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// migrate makes the VM's next migration, unless the cache is behind: its next event repeats the
// decision.
func (r *reconciler) migrate(ctx context.Context, v *move.VM) error {
	cause := evacuation.ExplanationOf(v.VMI).Cause
	switch {
	case !v.VMI.Marked():
		cause = evacuation.CauseNodeTaint
	case cause == "":
		cause = evacuation.CauseEviction
	}
	m := move.Migration(&v.Evacuee, cause)
	if behind, err := r.behind(ctx, v); behind || err != nil {
		return err
	}
	if err := r.Create(ctx, m); err != nil {
		return fmt.Errorf("migration of VMI %s/%s: %w", v.VMI.Namespace, v.VMI.Name, err)
	}
	r.Log.Info("migration made", "vmi", v.VMI.Namespace+"/"+v.VMI.Name, "migration", m.Name, "node", v.VMI.Node(), "cause", cause)
	r.Events.Eventf(v.VMI, nil, corev1.EventTypeNormal, "EvacuationStarted", "Migrate",
		"migration %s is to move the VM away from node %s (%s)", m.Name, v.VMI.Node(), cause)
	return nil
}

// begin makes the migration. Its event brings the report: in a burst migrations come first. A
// migration that is refused has no event, so that is reported here.
func (r *reconciler) begin(ctx context.Context, v *move.VM) error {
	err := r.migrate(ctx, v)
	if err == nil || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return err
	}
	changed, cordonErr := r.recordCordon(ctx, v)
	if changed || cordonErr != nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return errors.Join(err, cordonErr)
	}
	refused := evacuation.Step{Action: evacuation.Blocked, Reason: "MigrationRefused", Message: oneline.Cut("no migration can be made: "+err.Error(), 400)}
	err = errors.Join(err, r.report(ctx, v, refused))
	_, informErr := r.inform(ctx, v) // the next try tells what waits
	return errors.Join(err, informErr)
}

// shutDown deletes the launcher pod of a VM that no migration could move. Live reads decide.
// done is false if they do not agree: then the cache will show that, too.
func (r *reconciler) shutDown(ctx context.Context, v *move.VM) (done bool, err error) {
	key := client.ObjectKeyFromObject(v.VMI)
	now, err := r.Observer.ObserveNow(ctx, r.Live, key)
	if err != nil {
		return false, err
	}
	if now.Migrations, err = index.MigrationsNow(ctx, r.Live, now.VMI); err != nil {
		return false, err
	}
	step := evacuation.Next(now.Evacuee)
	if unmark, _ := evacuation.Unmark(markFacts(now)); unmark || step.Action != evacuation.Shutdown {
		return false, nil
	}
	pod := &now.Pods[0] // the rules want one
	if err := r.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("launcher pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.Log.Warn("shutting down a VM that could not be moved", "vmi", key.String(), "pod", pod.Name, "why", step.Message)
	r.Events.Eventf(now.VMI, nil, corev1.EventTypeWarning, evacuation.ReasonStuck, "Shutdown", "%s", step.Message)
	return true, nil
}

// prune deletes the oldest of the finished migrations.
func (r *reconciler) prune(ctx context.Context, v *move.VM) error {
	for _, m := range v.Outdated() {
		if err := r.remove(ctx, &m); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a migration only in the version that was read: it may have begun since.
func (r *reconciler) remove(ctx context.Context, m *kubevirt.VirtualMachineInstanceMigration) error {
	err := r.Delete(ctx, m, client.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("migration %s/%s: %w", m.Namespace, m.Name, err)
	}
	return nil
}

// cancel removes the mark of a VM that has ended or whose node is schedulable again, and deletes its
// pending migrations. The cache only shows whether there may be something to cancel;
// live reads decide.
func (r *reconciler) cancel(ctx context.Context, v *move.VM) (changed bool, err error) {
	unmark, _ := evacuation.Unmark(markFacts(v))
	if !unmark && len(evacuation.Withdrawn(v.Evacuee)) == 0 {
		return false, nil
	}
	now, err := r.Observer.ObserveNow(ctx, r.Live, client.ObjectKeyFromObject(v.VMI))
	if err != nil {
		return false, err
	}
	if remove, why := evacuation.Unmark(markFacts(now)); remove {
		r.Log.Info("removing the mark", "vmi", now.VMI.Namespace+"/"+now.VMI.Name, "node", now.VMI.Node(), "why", why)
		if err := move.TakeBack(ctx, r.Client, now.VMI, now.Now); err != nil {
			return false, err
		}
		text := fmt.Sprintf("node %s is used again: the VM stays", now.VMI.Node())
		if why == evacuation.ReasonEnded {
			text = "the VM has ended: there is nothing to move"
		}
		r.Events.Eventf(now.VMI, nil, corev1.EventTypeNormal, "EvacuationCancelled", "Cancel", "%s", text)
		return true, nil // the next reconcile deletes the migrations
	}
	if unmark && !now.VMI.Marked() {
		return true, nil // the cache is behind: what it shows is not acted on
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

// markFacts returns the inputs of evacuation.Unmark.
func markFacts(v *move.VM) evacuation.MarkFacts {
	return evacuation.MarkFacts{VMI: v.VMI, Strategy: v.Strategy, NodeSchedulable: v.Node.Schedulable(), NodeTainted: v.Node.Tainted, LauncherTerminating: v.LauncherTerminating}
}

// recordCordon adds to the explanation of a mark that the node is cordoned, drained or tainted. Live
// reads decide: the node of a cache that is behind may have been given back before the mark.
func (r *reconciler) recordCordon(ctx context.Context, v *move.VM) (done bool, err error) {
	if _, news := cordonUnrecorded(v); !news {
		return false, nil
	}
	now, err := r.Observer.ObserveNow(ctx, r.Live, client.ObjectKeyFromObject(v.VMI))
	if err != nil {
		return false, err
	}
	why, news := cordonUnrecorded(now)
	if !news {
		return false, nil
	}
	return true, patch.Status(ctx, r.Client, now.VMI, move.Explain(now.VMI, why))
}

// cordonUnrecorded returns the explanation of the VM's mark with the state of its node, and whether
// that is new to it.
func cordonUnrecorded(v *move.VM) (why evacuation.Explanation, news bool) {
	if !v.VMI.Marked() || !v.Node.Exists {
		return why, false
	}
	had := evacuation.ExplanationOf(v.VMI)
	why = had
	why.Tainted = had.Tainted || v.Node.Tainted
	if !v.Node.Schedulable() && !had.Cordoned {
		why.Cordoned, why.Descheduler = true, false // whoever cordons a node wants it empty
	}
	return why, why != had
}
