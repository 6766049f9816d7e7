// Package migration is the controller's side of live migrations: it checks them, creates the target
// pod, hands them to the two agents and records their result. It gathers, decides (migration.Next)
// and acts.
package migration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/retry"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// Config is what the controller needs. Live reads from the API server, not the cache.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader
	Events   events.EventRecorder
	Settings *settings.Live
	Meter    *metrics.Meter
	// Budgets means that the controller disruption-budgets is enabled.
	Budgets bool
	// Nodes means that nodes may be read.
	Nodes bool
	// Again receives migrations to look at that no event tells of; nil if there are none.
	Again <-chan event.GenericEvent
}

// workers is how many migrations are reconciled at the same time.
const workers = 8

type reconciler struct {
	Config
	client.Client // reads the cache

	turns  *turns
	phases *phases
	// granted receives migrations that have a turn, retry an event when one has lost it.
	granted, retry chan event.GenericEvent
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient(), turns: newTurns(), phases: newPhases(),
		granted: make(chan event.GenericEvent), retry: make(chan event.GenericEvent, 1)}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &kubevirt.VirtualMachineInstanceMigration{} })
	if err := r.addQueue(mgr); err != nil {
		return fmt.Errorf("queue of the migrations: %w", err)
	}
	if err := r.addLeftovers(mgr); err != nil {
		return fmt.Errorf("left over launcher pods: %w", err)
	}
	later := builder.WithPredicates(index.AfterStart())
	b := ctrl.NewControllerManagedBy(mgr).Named("migration").
		For(&kubevirt.VirtualMachineInstanceMigration{}).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, r.forget()).
		WatchesRawSource(source.Channel(r.granted, &handler.EnqueueRequestForObject{})).
		Watches(&kubevirt.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.ofVM(ctx, client.ObjectKeyFromObject(o))
		}), later).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.ofVM(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetAnnotations()[kubevirt.DomainAnnotation]})
		}), later).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			if owner := index.VMIOf(o); owner != nil {
				return r.ofVM(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name})
			}
			return nil
		}), later).
		WithOptions(failures.Options(mgr, workers))
	if cfg.Nodes {
		b = b.Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.ofNode), builder.WithPredicates(index.AfterStart(), nodeChanges()))
	}
	if cfg.Again != nil {
		b = b.WatchesRawSource(source.Channel(cfg.Again, &handler.EnqueueRequestForObject{}))
	}
	return b.Complete(failures.Reconciler(r))
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
	if step.Undecided != "" {
		err = r.reportUndecided(ctx, g, step.Undecided)
	} else if err = r.reportDecided(ctx, g); err == nil {
		err = r.act(ctx, g, step)
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case errors.Is(err, errNoTurn): // its next turn reconciles it again
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("%s: %w", step.Action, err)
	}
	return reconcile.Result{RequeueAfter: step.Again}, nil
}

// inTurn calls write, which writes the migration's phase, if it is its turn.
func (r *reconciler) inTurn(m *object, phase kubevirt.MigrationPhase, write func() error) error {
	err := r.turns.use(m, phase, write)
	if err != nil {
		r.computeTurns()
	}
	return err
}

// computeTurns makes the queue compute the turns anew: a migration has lost its turn.
func (r *reconciler) computeTurns() {
	select {
	case r.retry <- event.GenericEvent{}:
	default: // one is pending
	}
}
