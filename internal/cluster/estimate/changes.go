package estimate

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
)

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// nodeTaint is a NoExecute taint that a node has got.
type nodeTaint struct {
	node  string
	taint corev1.Taint
}

// newTaints collects the taints that nodes have got since the last look. It is safe for
// concurrent use.
type newTaints struct {
	mu  sync.Mutex
	all []nodeTaint
}

func (n *newTaints) add(all ...nodeTaint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, all...)
}

// take returns the taints and forgets them.
func (n *newTaints) take() []nodeTaint {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

// any reports whether there are any.
func (n *newTaints) any() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all) > 0
}

// soon enqueues the request after a change that counts, and at once after a new taint.
func (r *reconciler) soon(counts func(before, after client.Object) bool) handler.EventHandler {
	add := func(q requests) { q.AddAfter(request(), settleFor) }
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q requests) { add(q) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q requests) { add(q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requests) {
			switch counted := counts(e.ObjectOld, e.ObjectNew); {
			case r.tainted.any():
				q.Add(request())
			case counted:
				add(q)
			}
		},
	}
}

// nodeChanged filters out heartbeats of nodes, and records new NoExecute taints. The taints of
// a node that is lost are not told of: nothing can be moved away from it.
func (r *reconciler) nodeChanged(old, now client.Object) bool {
	before, ok := old.(*corev1.Node)
	after, ok2 := now.(*corev1.Node)
	if !ok || !ok2 {
		return false
	}
	for _, t := range after.Spec.Taints {
		had := slices.ContainsFunc(before.Spec.Taints, func(b corev1.Taint) bool { return b.MatchTaint(&t) })
		if !had && t.Effect == corev1.TaintEffectNoExecute && t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable {
			r.tainted.add(nodeTaint{after.Name, t})
		}
	}
	return index.Ready(before) != index.Ready(after) || before.Spec.Unschedulable != after.Spec.Unschedulable
}

func vmiChanged(old, now client.Object) bool {
	before, ok := old.(*kubevirt.VirtualMachineInstance)
	after, ok2 := now.(*kubevirt.VirtualMachineInstance)
	return ok && ok2 && (before.Node() != after.Node() || before.Migratable() != after.Migratable() || ended(before) != ended(after) ||
		!equality.Semantic.DeepEqual(before.Spec.EvictionStrategy, after.Spec.EvictionStrategy))
}

// ended reports whether a VM has ended or is being shut down.
func ended(v *kubevirt.VirtualMachineInstance) bool { return v.Final() || v.DeletionTimestamp != nil }

func podChanged(old, now client.Object) bool {
	before, ok := old.(*corev1.Pod)
	after, ok2 := now.(*corev1.Pod)
	return ok && ok2 && (before.Spec.NodeName != after.Spec.NodeName || index.Ended(before) != index.Ended(after))
}

// migrationChanged passes the end of a migration: its duration counts.
func migrationChanged(old, now client.Object) bool {
	before, ok := old.(*kubevirt.VirtualMachineInstanceMigration)
	after, ok2 := now.(*kubevirt.VirtualMachineInstanceMigration)
	return ok && ok2 && before.Status.Phase != after.Status.Phase && after.Status.Phase == kubevirt.MigrationSucceeded
}
