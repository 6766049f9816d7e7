package migration

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// forget drops what is kept of a migration that was deleted.
func (r *reconciler) forget() handler.EventHandler {
	return handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ requests) {
		r.phases.forget(e.Object.GetUID())
	}}
}

// ofVM returns requests for a VM's migrations that have not ended or have a finalizer.
func (r *reconciler) ofVM(ctx context.Context, vm types.NamespacedName) []reconcile.Request {
	all, err := index.MigrationsNamed(ctx, r.Client, vm)
	if err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range all {
		if !all[i].Final() || len(all[i].Finalizers) > 0 {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all[i])})
		}
	}
	return out
}

// ofNode returns requests for the migrations from and to a node that are not over. The node of one that is
// being scheduled is only that of its pod.
func (r *reconciler) ofNode(ctx context.Context, node client.Object) []reconcile.Request {
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := r.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range all.Items {
		m := &all.Items[i]
		s := migration.StateOf(m)
		if (!m.Final() || len(m.Finalizers) > 0) && (s.TargetNode == node.GetName() || s.SourceNode == node.GetName() || m.Status.Phase == kubevirt.MigrationScheduling) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return out
}

// nodeChanges passes events of nodes whose readiness or fence changes, or that are made or deleted.
func nodeChanges() predicate.Predicate {
	facts := func(o client.Object) (ready bool, fenced string) {
		node, ok := o.(*corev1.Node)
		if !ok {
			return false, ""
		}
		return index.Ready(node), index.Fenced(node)
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		wasReady, wasFenced := facts(e.ObjectOld)
		isReady, isFenced := facts(e.ObjectNew)
		return wasReady != isReady || wasFenced != isFenced
	}}
}
