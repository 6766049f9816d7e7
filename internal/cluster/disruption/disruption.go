// Package disruption moves VMs whose launcher pods Kubernetes deletes itself: for preemption
// or for a NoExecute taint. evacuation.Disrupted decides. It runs in every replica, because
// the node's agent holds the shutdown of an unmarked VM only for seconds.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/retry"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Config is what the controller needs.
type Config struct {
	Log      *slog.Logger
	Events   events.EventRecorder
	Observer move.Observer
	Mover    Mover
	// BesideKubeVirt means that KubeVirt marks VMs.
	BesideKubeVirt bool
}

// Mover moves a VM away from its node. It fails with move.ErrChanged if the VMI has changed
// since it was read, and with a *move.NotNowError if it cannot be moved now.
type Mover interface {
	Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error
}

// retryMove is the shortest requeue delay of a VM that could not be moved.
const retryMove = 2 * time.Second

// workers is how many VMs are reconciled at the same time: a taint hits all VMs of a node.
const workers = 16

type reconciler struct {
	Config
	client.Client // reads the cache
}

// Add adds the controller to the manager. It runs in every replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &kubevirt.VirtualMachineInstance{} })
	options := failures.Options(mgr, workers)
	options.NeedLeaderElection = new(false)
	// Replicas that are not elected need these caches as well. Their events are ignored.
	none := func(context.Context, client.Object) []reconcile.Request { return nil }
	cached := handler.EnqueueRequestsFromMapFunc(none)
	b := ctrl.NewControllerManagedBy(mgr).Named("pod-disruption").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(ofDeletedPod)).
		// The cache may show the pod's deletion before the change that made the VM live-migratable.
		Watches(&kubevirt.VirtualMachineInstance{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(index.AfterStart(), predicate.Funcs{UpdateFunc: wasUnmarked})).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, cached).
		WithOptions(options)
	if cfg.Observer.Nodes {
		b = b.Watches(&corev1.Node{}, cached)
	}
	return cfg.Observer.Settings.Watch(b, none).Complete(failures.Reconciler(r))
}

// ofDeletedPod returns the request for the VM of a launcher pod that is being deleted.
func ofDeletedPod(ctx context.Context, pod client.Object) []reconcile.Request {
	if pod.GetDeletionTimestamp() == nil {
		return nil
	}
	return index.OfPod(ctx, pod)
}

// wasUnmarked filters out updates of marked VMIs: the removal of a mark must not set it
// again.
func wasUnmarked(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*kubevirt.VirtualMachineInstance)
	return ok && !before.Marked()
}

// Reconcile moves one VM if its launcher's deletion is a disruption that counts.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Get(ctx, req.NamespacedName, vmi); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	d, err := r.gather(ctx, vmi)
	if d == nil {
		return reconcile.Result{}, err
	}
	set := r.Observer.Settings.Get()
	marks, why := evacuation.Disrupted(d, &set)
	if !marks {
		r.Log.Debug("the launcher pod's deletion is no reason to move the VM", "vmi", req.String(), "why", why)
		return reconcile.Result{}, nil
	}
	had := evacuation.ExplanationOf(vmi)
	explanation := evacuation.Explanation{
		Cause: d.Reason, Cordoned: had.Cordoned, Tainted: had.Tainted, External: d.Strategy == kubevirt.StrategyExternal,
	}
	var notNow *move.NotNowError
	switch err := r.Mover.Move(ctx, vmi, explanation); {
	case errors.As(err, &notNow):
		r.Log.Debug("the VM whose launcher is deleted is not moved now", "vmi", req.String(), "why", notNow)
		return reconcile.Result{RequeueAfter: max(notNow.Again, retryMove)}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("move %s: %w", req, err)
	}
	r.Log.Info("VM is to leave its node: Kubernetes deletes its launcher", "vmi", req.String(), "node", vmi.Node(), "cause", d.Reason)
	r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "LauncherDisrupted", "Move",
		"the launcher pod is deleted (%s): the VM is to leave node %s", d.Reason, vmi.Node())
	return reconcile.Result{}, nil
}

// gather reads the node, and the launcher on it that is being deleted. It returns nil
// without such a launcher.
func (r *reconciler) gather(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (*evacuation.Disruption, error) {
	v, err := r.Observer.Observe(ctx, vmi)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(v.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == vmi.Node() && p.DeletionTimestamp != nil })
	if at < 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	d := index.DisruptionOf(&v.Pods[at], vmi, v.Strategy)
	d.BesideKubeVirt, d.NodeReady = r.BesideKubeVirt, v.NodeReady
	return d, nil
}
