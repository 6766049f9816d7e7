// Package disrupt has VMs leave their nodes whose launcher pods are deleted by
// Kubernetes itself: for a more important pod, or for a taint. What counts is
// decided in evacuation.Disrupted. It runs in every replica: the node's agent
// holds the shutdown for seconds only until the VM is marked.
package disrupt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/internal/controller/mark"
	"github.com/vmgrace/vmgrace/internal/controller/settings"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Config is what the controller needs.
type Config struct {
	Log      *slog.Logger
	Events   events.EventRecorder
	Settings *settings.Live
	Mover    Mover
	// Nodes may be read. Where not, each is taken for one that is Ready.
	Nodes bool
	// Unheld: no agent holds shutdowns here. VMs are moved all the same, if there is
	// time enough.
	Unheld bool
}

// Mover has a VM leave its node. It fails with mark.ErrChanged if the VMI is not any
// more as it was read, and with a *mark.NotNowError if it cannot be moved now.
type Mover interface {
	Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error
}

// retryMove is how soon a VM is tried again that could not be moved.
const retryMove = 2 * time.Second

// workers mark VMs at the same time: a taint hits all of a node at once.
const workers = 16

type reconciler struct {
	Config
	client.Client // reads the cache
}

// Add has the manager run the controller, in each replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	// What is read has to be watched by whoever does not lead, too.
	cached := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return nil })
	b := ctrl.NewControllerManagedBy(mgr).Named("pod-disruption").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(deleted)).
		// The cache may show the pod's deletion before what made the VM movable.
		Watches(&kubevirt.VirtualMachineInstance{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: unmarkedBefore})).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, cached).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NeedLeaderElection: new(false)})
	if cfg.Nodes {
		b = b.Watches(&corev1.Node{}, cached)
	}
	return b.Complete(r)
}

// deleted asks for the VM of a launcher pod that is being deleted.
func deleted(ctx context.Context, pod client.Object) []reconcile.Request {
	if pod.GetDeletionTimestamp() == nil {
		return nil
	}
	return lookup.OfPod(ctx, pod)
}

// unmarkedBefore leaves out VMs whose mark was taken: they are not to be marked anew
// for that.
func unmarkedBefore(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*kubevirt.VirtualMachineInstance)
	return ok && !before.Marked()
}

// Reconcile has one VM moved, if it is to leave its node.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.Settings.Known() {
		return reconcile.Result{RequeueAfter: settings.Retry}, nil
	}
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Get(ctx, req.NamespacedName, vmi); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	d, err := r.gather(ctx, vmi)
	if d == nil {
		return reconcile.Result{}, err
	}
	set := r.Settings.Get()
	marks, why := evacuation.Disrupted(d, &set)
	if !marks {
		r.Log.Debug("the launcher pod's deletion moves no VM", "vmi", req.String(), "why", why)
		return reconcile.Result{}, nil
	}
	explanation := evacuation.Explanation{Cause: d.Reason, Cordoned: vmi.Annotations[evacuation.CordonedAnnotation] == evacuation.Yes}
	var notNow *mark.NotNowError
	switch err := r.Mover.Move(ctx, vmi, explanation); {
	case errors.As(err, &notNow):
		r.Log.Debug("the VM whose launcher is deleted is not moved now", "vmi", req.String(), "why", notNow)
		return reconcile.Result{RequeueAfter: max(notNow.Again, retryMove)}, nil
	case errors.Is(err, mark.ErrChanged):
		return reconcile.Result{RequeueAfter: lookup.RetryBehind}, nil // another replica was first, or the cache is behind
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("move %s: %w", req, err)
	}
	r.Log.Info("VM is to leave its node: Kubernetes deletes its launcher", "vmi", req.String(), "node", vmi.Node(), "cause", d.Reason)
	r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "LauncherDisrupted", "Move",
		"the launcher pod is deleted (%s): the VM is to leave node %s", d.Reason, vmi.Node())
	return reconcile.Result{}, nil
}

// gather looks at the launcher on the VM's node that is being deleted, and at the
// node; nil: there is no such launcher.
func (r *reconciler) gather(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (*evacuation.Disruption, error) {
	launchers, err := lookup.Launchers(ctx, r.Client, vmi)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(launchers, func(p corev1.Pod) bool { return p.Spec.NodeName == vmi.Node() && p.DeletionTimestamp != nil })
	if at < 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	strategy, _ := evacuation.StrategyOf(vmi, r.Settings.Get().EvictionStrategy)
	d := lookup.DisruptionOf(&launchers[at], vmi, strategy)
	d.Unheld = r.Unheld
	if !r.Nodes {
		return d, nil
	}
	node := &corev1.Node{}
	switch err := r.Get(ctx, client.ObjectKey{Name: vmi.Node()}, node); {
	case apierrors.IsNotFound(err):
		d.NodeReady = false
	case err != nil:
		return nil, fmt.Errorf("node %s: %w", vmi.Node(), err)
	default:
		d.NodeReady = lookup.Ready(node)
	}
	return d, nil
}
