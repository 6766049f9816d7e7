// Package estimate says beforehand what a NoExecute taint would do to the VMs of each node: in
// the EvacuationPolicy's status, and in an Event about a node that gets such a taint. It only
// reads and reports; evacuation.EstimateOf has the rules.
package estimate

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/retry"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Config is what the controller needs.
type Config struct {
	Log      *slog.Logger
	Events   events.EventRecorder
	Settings *settings.Live
}

const (
	// settleFor merges changes in quick succession into one look.
	settleFor = time.Second
	// atMostEach is the least time between two looks for the status.
	atMostEach = 30 * time.Second
)

// reconciler belongs to its one worker; event handlers use only tainted.
type reconciler struct {
	Config
	client.Client // reads the cache

	tainted newTaints
	next    time.Time // when the status may be written again
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &v1alpha1.EvacuationPolicy{} })
	b := ctrl.NewControllerManagedBy(mgr).Named("estimate").
		Watches(&corev1.Node{}, r.soon(r.nodeChanged)).
		Watches(&kubevirt.VirtualMachineInstance{}, r.soon(vmiChanged)).
		Watches(&corev1.Pod{}, r.soon(podChanged)).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, r.soon(migrationChanged)).
		WithOptions(failures.Options(mgr, 1))
	every := func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{request()} }
	return cfg.Settings.Watch(b, every).Complete(failures.Reconciler(r))
}

// request returns the same request for all objects: a look is at all nodes and VMs.
func request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: v1alpha1.Name}}
}

// Reconcile reports the nodes that were tainted since, and at most each 30 s writes the status.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if err := r.Settings.Known(); err != nil {
		return reconcile.Result{}, err
	}
	policy, err := index.Policy(ctx, r.Client)
	if err != nil {
		return reconcile.Result{}, err
	}
	set := r.Settings.Get()
	if !set.Gate(evacuation.GateNoExecute) {
		r.tainted.take()
		return reconcile.Result{}, r.persist(ctx, policy, nil) // nobody is moved, as without vmgrace
	}
	wait := max(time.Until(r.next), 0)
	if wait == 0 || policy == nil {
		return reconcile.Result{}, r.report(ctx, set, policy)
	}
	return reconcile.Result{RequeueAfter: wait}, r.report(ctx, set, nil)
}

// report emits the Events about new taints, and writes the policy's status unless policy is nil.
func (r *reconciler) report(ctx context.Context, set evacuation.Settings, policy *v1alpha1.EvacuationPolicy) error {
	tainted := r.tainted.take()
	if policy == nil && len(tainted) == 0 {
		return nil
	}
	now, err := r.look(ctx, set)
	if err != nil {
		r.tainted.add(tainted...)
		return err
	}
	for _, t := range tainted {
		r.tell(now, t)
	}
	if policy == nil {
		return nil
	}
	if err := r.persist(ctx, policy, now); err != nil {
		return err
	}
	r.next = time.Now().Add(atMostEach)
	return nil
}
