package migrate

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// waiting has those that wait for their turn looked at when another has ended.
func (r *reconciler) waiting() handler.EventHandler {
	all := func(ctx context.Context, q queue) {
		for _, req := range r.allWaiting(ctx) {
			q.Add(req)
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if !final(e.ObjectOld) && final(e.ObjectNew) {
				all(ctx, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if !final(e.Object) {
				all(ctx, q)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.seen, e.Object.GetUID())
		},
	}
}

func final(o client.Object) bool {
	m, ok := o.(*kubevirt.VirtualMachineInstanceMigration)
	return ok && m.Final()
}

// allWaiting are the migrations that have not begun.
func (r *reconciler) allWaiting(ctx context.Context) []reconcile.Request {
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := r.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has started, or there would be no event
	}
	var out []reconcile.Request
	for i := range all.Items {
		if evacuation.PhaseOf(&all.Items[i]) == kubevirt.MigrationPending {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return out
}

// ofVM are the migrations of a VM that are not over, or not let go.
func (r *reconciler) ofVM(ctx context.Context, vm types.NamespacedName) []reconcile.Request {
	all, err := lookup.Migrations(ctx, r.Client, vm)
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
