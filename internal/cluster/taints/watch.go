package taints

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// elsewhereAfter is how long a change waits that has to do with no taint. It only changes the number
// of nodes with VMs, and a look at all nodes and VMs of a large cluster takes tens of milliseconds.
const elsewhereAfter = 30 * time.Second

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// concerned returns a handler that enqueues the request: at once after a change of what has to do
// with a taint, by has, and later after any other.
func (r *reconciler) concerned(has func(context.Context, client.Object) bool) handler.EventHandler {
	add := func(ctx context.Context, q requests, objects ...client.Object) {
		for _, o := range objects {
			if has(ctx, o) {
				q.Add(request()[0])
				return
			}
		}
		q.AddAfter(request()[0], elsewhereAfter)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requests) { add(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requests) { add(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q requests) { add(ctx, q, e.Object) },
	}
}

// ofTaint reports whether a VM is on a node with a taint, or something of one is left on it.
func (r *reconciler) ofTaint(ctx context.Context, o client.Object) bool {
	v, ok := o.(*kubevirt.VirtualMachineInstance)
	return ok && (hasTaintsLeft(v) || r.tainted(ctx, v.Node()))
}

// launcherOfTaint reports whether a launcher is on a node with a taint, or is of a VM on which
// something of one is left.
func (r *reconciler) launcherOfTaint(ctx context.Context, o client.Object) bool {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return false
	}
	v := &kubevirt.VirtualMachineInstance{}
	key := client.ObjectKey{Namespace: p.Namespace, Name: p.Annotations[kubevirt.DomainAnnotation]}
	return r.tainted(ctx, p.Spec.NodeName) || r.Get(ctx, key, v, client.UnsafeDisableDeepCopy) == nil && r.ofTaint(ctx, v)
}

// tainted reports whether a node has a taint, as far as the cache shows. A node that gets one later
// has an event of its own.
func (r *reconciler) tainted(ctx context.Context, node string) bool {
	n := &corev1.Node{}
	return node != "" && r.Get(ctx, client.ObjectKey{Name: node}, n, client.UnsafeDisableDeepCopy) == nil && len(n.Spec.Taints) > 0
}
