// Package migrate is the controller's side of live migrations: it checks them, creates the
// target pod, hands them to the two agents and records their result. Gather, decide (migration.Next), act.
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
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/internal/controller/meter"
	"github.com/vmgrace/vmgrace/internal/controller/retry"
	"github.com/vmgrace/vmgrace/internal/controller/settings"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// Config is what the controller needs. Live reads from the API server, not the cache.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader
	Events   events.EventRecorder
	Settings *settings.Live
	Meter    *meter.Meter
	// Budgets: the controller disruption-budgets is enabled.
	Budgets bool
	// Nodes: nodes may be read.
	Nodes bool
}

// workers is how many migrations are reconciled at the same time.
const workers = 8

type reconciler struct {
	Config
	client.Client // reads the cache

	begin sync.Mutex // held from counting against the limits until the migration has begun

	mu     sync.Mutex
	phases map[types.UID]phaseStart
}

// phaseStart is when a migration was first read in a phase, by this machine's clock.
type phaseStart struct {
	phase kubevirt.MigrationPhase
	at    time.Time
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient(), phases: map[types.UID]phaseStart{}}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &kubevirt.VirtualMachineInstanceMigration{} })
	// Nodes are only counted: they need a cache, and their events no reconcile.
	if cfg.Nodes {
		if _, err := mgr.GetCache().GetInformer(context.Background(), &corev1.Node{}); err != nil {
			return fmt.Errorf("nodes: %w", err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).Named("migration").
		For(&kubevirt.VirtualMachineInstanceMigration{}).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, r.onEnd()).
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
		WatchesRawSource(cfg.Settings.Source(func(ctx context.Context, _ client.Object) []reconcile.Request { return r.allPending(ctx) })).
		WithOptions(failures.Options(mgr, workers)).
		Complete(cfg.Settings.WhenKnown(failures.Reconciler(r)))
}

// Reconcile takes the next step for one migration.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
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
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("%s: %w", step.Action, err)
	}
	return reconcile.Result{RequeueAfter: step.Again}, nil
}

// phaseSince is when a migration was first read in its present phase.
func (r *reconciler) phaseSince(m *kubevirt.VirtualMachineInstanceMigration, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.Final() {
		delete(r.phases, m.UID)
		return now
	}
	if s, ok := r.phases[m.UID]; ok && s.phase == m.Status.Phase {
		return s.at
	}
	r.phases[m.UID] = phaseStart{m.Status.Phase, now}
	return now
}
