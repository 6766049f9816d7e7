// Package evacuation moves marked VMs away from their nodes: it creates a migration for
// each mark, reports its progress, and cancels marks and migrations after an uncordon.
// It gathers, decides (evacuation.Next, Unmark, Withdrawn) and acts.
package evacuation

import (
	"context"
	"log/slog"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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

// Config is what the controller needs. Live reads from the API server, not the cache.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader
	Events   events.EventRecorder
	Observer move.Observer
}

// workers is how many VMs are reconciled at the same time.
const workers = 16

type reconciler struct {
	Config
	client.Client // reads the cache

	withdrawn withdrawn
	informs   *rate.Limiter
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	cfg.Events = spread{cfg.Events, newInforms()}
	r := &reconciler{Config: cfg, Client: mgr.GetClient(), withdrawn: withdrawn{vms: map[types.NamespacedName]bool{}}, informs: newInforms()}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &kubevirt.VirtualMachineInstance{} })
	b := ctrl.NewControllerManagedBy(mgr).Named("evacuation").
		Watches(&kubevirt.VirtualMachineInstance{}, &index.VMIs{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(index.OfPod), builder.WithPredicates(index.AfterStart())).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(index.OfMigration),
			builder.WithPredicates(index.AfterStart(), predicate.Funcs{DeleteFunc: r.withdrawn.note})).
		WithOptions(failures.Options(mgr, workers))
	b = cfg.Observer.Settings.Watch(b, index.All(r.Client), index.AfterStart())
	if cfg.Observer.Nodes {
		b = b.Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(index.OfNode(r.Client)),
			builder.WithPredicates(index.AfterStart(), predicate.Funcs{UpdateFunc: r.nodeChanged}))
	}
	return b.Complete(failures.Reconciler(r))
}

// nodeChanged filters out heartbeats of nodes.
func (r *reconciler) nodeChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	return ok && ok2 && (r.Observer.StateOf(before) != r.Observer.StateOf(after) || !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints))
}

// Reconcile takes the next step for one VM.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Get(ctx, req.NamespacedName, vmi); err != nil {
		if apierrors.IsNotFound(err) {
			r.withdrawn.forget(req.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	v, err := r.Observer.Observe(ctx, vmi)
	if err != nil {
		return reconcile.Result{}, err
	}
	next, err := r.act(ctx, v)
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return reconcile.Result{}, nil // the object or its namespace was deleted meanwhile
	}
	return reconcile.Result{RequeueAfter: next.Again}, err
}

// act carries out the decision. It acts on what an eviction waits for before it reports.
func (r *reconciler) act(ctx context.Context, v *move.VM) (evacuation.Step, error) {
	if changed, err := r.cancel(ctx, v); changed || err != nil {
		return evacuation.Step{}, err
	}
	next := evacuation.Next(v.Evacuee)
	if next.Action == evacuation.Migrate {
		return evacuation.Step{}, r.begin(ctx, v)
	}
	if next.Action == evacuation.Shutdown {
		if done, err := r.shutDown(ctx, v); err != nil || !done {
			return next, err
		}
	}
	if done, err := r.recordCordon(ctx, v); done || err != nil {
		return next, err // the VMI has changed: its event brings the report
	}
	if err := r.report(ctx, v, next); err != nil {
		return next, err
	}
	if err := r.prune(ctx, v); err != nil {
		return next, err
	}
	waits, err := r.inform(ctx, v)
	if waits && (next.Again == 0 || next.Again > informAgain) {
		next.Again = informAgain
	}
	return next, err
}
