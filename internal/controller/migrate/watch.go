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

// onEnd enqueues the pending migrations when another one has ended.
func (r *reconciler) onEnd() handler.EventHandler {
	all := func(ctx context.Context, q queue) {
		for _, req := range r.allPending(ctx) {
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
			delete(r.phases, e.Object.GetUID())
		},
	}
}

func final(o client.Object) bool {
	m, ok := o.(*kubevirt.VirtualMachineInstanceMigration)
	return ok && m.Final()
}

// allPending returns requests for the migrations that have not begun.
func (r *reconciler) allPending(ctx context.Context) []reconcile.Request {
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := r.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil // cannot fail: the cache has started, or there would be no event
	}
	var out []reconcile.Request
	for i := range all.Items {
		if evacuation.PhaseOf(&all.Items[i]) == kubevirt.MigrationPending {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return out
}

// ofVM returns requests for a VM's migrations that have not ended or have a finalizer.
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
