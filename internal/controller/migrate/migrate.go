// Package migrate is the controller's side of live migrations: it checks them,
// makes the target pod, hands them to the two agents and writes down how they
// end. Gather, decide (migration.Next), act.
package migrate

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/internal/controller/meter"
	"github.com/vmgrace/vmgrace/internal/controller/settings"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// Config is what the controller needs. Live asks the API server.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader
	Events   events.EventRecorder
	Settings *settings.Live
	Meter    *meter.Meter
	// Budgets: the controller of the disruption budgets runs here.
	Budgets bool
	// Nodes may be read.
	Nodes bool
}

// workers look at migrations at the same time.
const workers = 8

type reconciler struct {
	Config
	client.Client // reads the cache

	begin sync.Mutex // one begins at a time: the limits are counted

	mu   sync.Mutex
	seen map[types.UID]phaseSeen
}

// phaseSeen is since when a migration is in a phase, by this machine's clock.
type phaseSeen struct {
	phase kubevirt.MigrationPhase
	at    time.Time
}

// Add has the manager run the controller, in the replica that is elected.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient(), seen: map[types.UID]phaseSeen{}}
	// Nodes are counted, and tell nothing of themselves.
	if cfg.Nodes {
		if _, err := mgr.GetCache().GetInformer(context.Background(), &corev1.Node{}); err != nil {
			return fmt.Errorf("nodes: %w", err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).Named("migration").
		For(&kubevirt.VirtualMachineInstanceMigration{}).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, r.waiting()).
		Watches(&kubevirt.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.ofVM(ctx, client.ObjectKeyFromObject(o))
		})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.ofVM(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetAnnotations()[kubevirt.DomainAnnotation]})
		})).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			if owner := lookup.VMIOf(o); owner != nil {
				return r.ofVM(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name})
			}
			return nil
		})).
		WatchesRawSource(cfg.Settings.Source(func(ctx context.Context, _ client.Object) []reconcile.Request { return r.allWaiting(ctx) })).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

// Reconcile does for one migration what comes next.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.Settings.Known() {
		return reconcile.Result{RequeueAfter: settings.Retry}, nil
	}
	m := &kubevirt.VirtualMachineInstanceMigration{}
	if err := r.Get(ctx, req.NamespacedName, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	g, err := r.gather(ctx, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	step := migration.Next(g.Facts)
	r.Log.Debug("migration", "migration", req.String(), "phase", m.Status.Phase, "step", step.Action, "reason", step.Reason, "why", step.Message)
	err = r.act(ctx, g, step)
	switch {
	case apierrors.IsConflict(err), apierrors.IsInvalid(err), apierrors.IsAlreadyExists(err):
		r.Log.Debug("the cache was behind", "migration", req.String(), "error", err)
		return reconcile.Result{RequeueAfter: lookup.RetryBehind}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: lookup.RetryBehind}, nil // something has gone meanwhile
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("%s: %w", step.Action, err)
	}
	return reconcile.Result{RequeueAfter: step.Again}, nil
}

// since is when a migration was first seen in its present phase.
func (r *reconciler) since(m *kubevirt.VirtualMachineInstanceMigration, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.Final() {
		delete(r.seen, m.UID)
		return now
	}
	if s, ok := r.seen[m.UID]; ok && s.phase == m.Status.Phase {
		return s.at
	}
	r.seen[m.UID] = phaseSeen{m.Status.Phase, now}
	return now
}
