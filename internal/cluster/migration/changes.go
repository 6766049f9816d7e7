package migration

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// changedVMs has the VMs of which something has changed since the queue last read them. It is safe for
// concurrent use.
type changedVMs struct {
	mu  sync.Mutex
	all map[types.NamespacedName]bool
}

// note notes the VM that an object is, or belongs to.
func (c *changedVMs) note(o client.Object) {
	name := ""
	switch o := o.(type) {
	case *object:
		name = o.Spec.VMIName
	case *kubevirt.VirtualMachineInstance:
		name = o.Name
	case *corev1.Pod:
		name = o.Annotations[kubevirt.DomainAnnotation]
	}
	if name != "" {
		c.add(types.NamespacedName{Namespace: o.GetNamespace(), Name: name})
	}
}

func (c *changedVMs) add(vm types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[types.NamespacedName]bool{}
	}
	c.all[vm] = true
}

// take returns the VMs and forgets them.
func (c *changedVMs) take() map[types.NamespacedName]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return all
}

// soon notes each change, and enqueues the queue's key after one that turns may depend on.
func (q *queue) soon() handler.EventHandler {
	add := func(queue requests, of client.Object) {
		q.changed.note(of)
		queue.AddAfter(reconcile.Request{}, settleFor)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue requests) { add(queue, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue requests) {
			q.changed.note(e.ObjectOld)
			q.changed.note(e.ObjectNew)
			if turnFactsOf(e.ObjectOld) != turnFactsOf(e.ObjectNew) {
				add(queue, e.ObjectNew)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, queue requests) { add(queue, e.Object) },
		GenericFunc: func(_ context.Context, _ event.GenericEvent, queue requests) {
			queue.AddAfter(reconcile.Request{}, settleFor)
		},
	}
}

// turnFacts holds what turns depend on of an object.
type turnFacts struct {
	phase, node, priority, cause string
	deleting, unschedulable      bool
	held                         string
}

func turnFactsOf(o client.Object) (f turnFacts) {
	f.deleting = o.GetDeletionTimestamp() != nil
	switch o := o.(type) {
	case *object:
		f.phase = string(o.Status.Phase)
		if o.Spec.Priority != nil {
			f.priority = *o.Spec.Priority
		}
	case *kubevirt.VirtualMachineInstance:
		f.node, f.phase, f.held = o.Node(), string(o.Status.Phase), o.Status.EvacuationNodeName
		why := evacuation.ExplanationOf(o)
		f.cause = why.Cause + why.Source()
	case *corev1.Pod:
		facts := podFacts(o, nil)
		f.node, f.phase, f.unschedulable = o.Spec.NodeName, string(o.Status.Phase), facts.Unschedulable != ""
		f.held, f.cause = o.Annotations[evacuation.HoldForAnnotation], index.Disruption(o)
	}
	return f
}
