package index

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// At its start a controller looks at firstLooks VMs, and at as many again each firstLooksEvery.
const (
	firstLooks      = 100
	firstLooksEvery = 50 * time.Millisecond
)

// VMIs is the handler of the VMIs that a controller reconciles. A new leader finds all of them
// there. Of most nothing is to be done, so it takes its time: what has to be decided now does not
// wait for the processor. Marked VMs, and each that changes, do not wait.
type VMIs struct {
	handler.EnqueueRequestForObject

	there atomic.Int64 // how many were there at the start
}

// Create enqueues a VMI: at once if it is new or marked, else when it is its turn.
func (v *VMIs) Create(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	queue, ok := q.(priorityqueue.PriorityQueue[reconcile.Request])
	vmi, isVMI := e.Object.(*kubevirt.VirtualMachineInstance)
	if !ok || !isVMI || !e.IsInInitialList {
		v.EnqueueRequestForObject.Create(ctx, e, q)
		return
	}
	o := priorityqueue.AddOpts{Priority: new(handler.LowPriority)} // what happens now goes before all that was there
	if !vmi.Marked() {
		o.After = time.Duration((v.there.Add(1)-1)/firstLooks) * firstLooksEvery
	}
	queue.AddWithOpts(o, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
}
