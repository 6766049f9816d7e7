// Package evacuation moves marked VMs away from their nodes: it creates a migration for
// each mark, reports its progress, and cancels marks and migrations after an uncordon.
// It gathers, decides (evacuation.Next, Unmark, Withdrawn) and acts.
package evacuation

import (
	"cmp"
	"context"
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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/index"
	"github.com/vmgrace/vmgrace/internal/controller/retry"
	"github.com/vmgrace/vmgrace/internal/controller/settings"
	"github.com/vmgrace/vmgrace/internal/evacuation"
)

// Config is what the controller needs. Live reads from the API server, not the cache.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader
	Events   events.EventRecorder
	Settings *settings.Live
	// Nodes means that nodes may be read. Otherwise each node counts as Ready, and it is
	// unknown whether it is schedulable.
	Nodes bool
}

// workers is how many VMs are reconciled at the same time.
const workers = 16

type reconciler struct {
	Config
	client.Client // reads the cache
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &kubevirt.VirtualMachineInstance{} })
	b := ctrl.NewControllerManagedBy(mgr).Named("evacuation").
		For(&kubevirt.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(index.OfPod)).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(index.OfMigration)).
		WatchesRawSource(cfg.Settings.Source(index.All(r.Client))).
		WithOptions(failures.Options(mgr, workers))
	if cfg.Nodes {
		b = b.Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(index.OfNode(r.Client)),
			builder.WithPredicates(predicate.Funcs{UpdateFunc: r.nodeChanged}))
	}
	return b.Complete(cfg.Settings.WhenKnown(failures.Reconciler(r)))
}

// nodeChanged filters out heartbeats of nodes.
func (r *reconciler) nodeChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	return ok && ok2 && r.stateOf(before) != r.stateOf(after)
}

// nodeState is the state of a node that decisions depend on.
type nodeState struct{ there, ready, cordoned, drained bool }

func (n nodeState) schedulable() bool { return n.there && !n.cordoned && !n.drained }

func (r *reconciler) stateOf(node *corev1.Node) nodeState {
	return nodeState{
		there: true, ready: index.Ready(node), cordoned: node.Spec.Unschedulable,
		drained: index.Drained(node, r.Settings.Get().DrainTaint),
	}
}

// vm is one VM with what was read for it.
type vm struct {
	evacuation.Evacuee

	node      nodeState
	launchers []corev1.Pod
}

// terminating reports whether a launcher is being deleted.
func (v *vm) terminating() bool {
	return slices.ContainsFunc(v.launchers, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// unschedulable returns the scheduler's message about a launcher that fits on no node,
// or "".
func (v *vm) unschedulable() string {
	for i := range v.launchers {
		for _, c := range v.launchers[i].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && v.launchers[i].DeletionTimestamp == nil {
				return cmp.Or(c.Message, c.Reason, "it does not say why")
			}
		}
	}
	return ""
}

// Reconcile takes the next step for one VM.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Get(ctx, req.NamespacedName, vmi); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	launchers, err := index.Launchers(ctx, r.Client, vmi)
	if err != nil {
		return reconcile.Result{}, err
	}
	v, err := r.gather(ctx, r.Client, vmi, launchers)
	if err != nil {
		return reconcile.Result{}, err
	}
	next, err := r.act(ctx, v)
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return reconcile.Result{}, nil // the object or its namespace was deleted meanwhile
	}
	return reconcile.Result{RequeueAfter: next.Again}, err
}

// gather reads a VM's node through the reader from, and its migrations from the cache.
func (r *reconciler) gather(ctx context.Context, from client.Reader, vmi *kubevirt.VirtualMachineInstance, launchers []corev1.Pod) (*vm, error) {
	v := &vm{launchers: launchers}
	node := &corev1.Node{}
	if name := vmi.Node(); !r.Nodes {
		v.node = nodeState{ready: true}
	} else if name != "" {
		if err := from.Get(ctx, client.ObjectKey{Name: name}, node); err == nil {
			v.node = r.stateOf(node)
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	migrations, err := index.Migrations(ctx, r.Client, client.ObjectKeyFromObject(vmi))
	if err != nil {
		return nil, err
	}
	strategy, _ := evacuation.StrategyOf(vmi, r.Settings.Get().EvictionStrategy)
	v.Evacuee = evacuation.Evacuee{
		VMI: vmi, Strategy: strategy, NodeReady: v.node.ready, NodeDrained: v.node.drained,
		Launchers: len(v.launchers), LauncherTerminating: v.terminating(), Unschedulable: v.unschedulable(),
		Migrations: migrations, Now: time.Now(),
	}
	return v, nil
}

// act carries out the decision. It acts on what an eviction waits for before it reports.
func (r *reconciler) act(ctx context.Context, v *vm) (evacuation.Step, error) {
	if changed, err := r.cancel(ctx, v); changed || err != nil {
		return evacuation.Step{}, err
	}
	next := evacuation.Next(v.Evacuee)
	if next.Action == evacuation.Migrate {
		made, err := r.migrate(ctx, v)
		if err != nil {
			return next, err
		}
		v.Migrations = append(v.Migrations, *made)
		next = evacuation.Next(v.Evacuee)
	}
	if err := r.report(ctx, v, next); err != nil {
		return next, err
	}
	return next, r.prune(ctx, v)
}
