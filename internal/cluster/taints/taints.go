// Package taints moves VMs away from nodes that have been tainted for too long. One
// reconcile reads all nodes and VMs and decides for all of them (replacement.Next),
// because the limit of concurrent replacements is cluster-wide. Its state is in the
// EvacuationPolicy's status, and is written before any action.
package taints

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/retry"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	replacement "github.com/vmgrace/vmgrace/internal/rules/taints"
)

// Config is what the controller needs.
type Config struct {
	Log      *slog.Logger
	Events   events.EventRecorder
	Settings *settings.Live
	Meter    *metrics.Meter
	Mover    Mover
	// Conditions means that the VMIs' conditions are written. It is false with KubeVirt,
	// which reverts them.
	Conditions bool
}

// Mover moves VMs away from their nodes.
type Mover interface {
	// Move fails with move.ErrChanged if the VMI has changed since it was read.
	Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error
	// Moving reports whether a VM is to leave its node already, and the cause.
	Moving(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (cause string, moving bool, err error)
	// Cancel undoes a Move that has not begun.
	Cancel(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error
}

const (
	// batchDelay merges changes in quick succession into one reconcile.
	batchDelay = 200 * time.Millisecond
	// recheckAfter is the requeue delay after an action, in case no event follows it.
	recheckAfter = 5 * time.Second
)

// reconciler belongs to its one worker; event handlers use only removed.
type reconciler struct {
	Config
	client.Client // reads the cache

	removed  removedTaints
	state    replacement.State
	restored bool // state was read from the policy's status
	policy   replacement.Policy
	warned   bool // the Event about too many tainted nodes was emitted
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	world := func(context.Context, client.Object) []reconcile.Request { return request() }
	all := handler.EnqueueRequestsFromMapFunc(world)
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &v1alpha1.EvacuationPolicy{} })
	b := ctrl.NewControllerManagedBy(mgr).Named("taint-replacement").
		Watches(&corev1.Node{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: r.nodeChanged, DeleteFunc: r.nodeGone})).
		Watches(&kubevirt.VirtualMachineInstance{}, r.concerned(r.ofTaint), builder.WithPredicates(predicate.Funcs{UpdateFunc: vmiChanged})).
		Watches(&corev1.Pod{}, r.concerned(r.launcherOfTaint), builder.WithPredicates(predicate.Funcs{UpdateFunc: podChanged})).
		WithOptions(failures.Options(mgr, 1))
	return cfg.Settings.Watch(b, world).Complete(failures.Reconciler(r))
}

// request returns the same request for all objects: any change makes the controller read all
// nodes and VMs, sooner or later.
func request() []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.Name}}}
}

// nodeChanged filters out heartbeats of nodes, and records removed taints.
func (r *reconciler) nodeChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	if !ok || !ok2 {
		return false
	}
	r.removed.record(before, after)
	return !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) || index.Ready(before) != index.Ready(after)
}

func (r *reconciler) nodeGone(e event.DeleteEvent) bool {
	if before, ok := e.Object.(*corev1.Node); ok {
		r.removed.record(before, nil)
	}
	return true
}

// vmiChanged filters out changes that no decision depends on.
func vmiChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*kubevirt.VirtualMachineInstance)
	after, ok2 := e.ObjectNew.(*kubevirt.VirtualMachineInstance)
	if !ok || !ok2 {
		return false
	}
	return before.Node() != after.Node() || before.Marked() != after.Marked() || before.Migratable() != after.Migratable() ||
		before.Final() != after.Final() || !equality.Semantic.DeepEqual(before.Spec.EvictionStrategy, after.Spec.EvictionStrategy) ||
		!sameConditions(before, after)
}

func sameConditions(a, b *kubevirt.VirtualMachineInstance) bool {
	for _, kind := range []string{kubevirt.NodeTaintDetected, kubevirt.NodeTaintReplacing} {
		if a.ConditionIs(kind, kubevirt.ConditionTrue) != b.ConditionIs(kind, kubevirt.ConditionTrue) {
			return false
		}
	}
	return true
}

func podChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Pod)
	after, ok2 := e.ObjectNew.(*corev1.Pod)
	return ok && ok2 && (before.Status.Phase != after.Status.Phase || (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		!equality.Semantic.DeepEqual(before.Spec.Tolerations, after.Spec.Tolerations))
}

// Reconcile reads everything, decides, persists the state, acts and reports.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	select { // changes that follow at once are handled together
	case <-ctx.Done():
		return reconcile.Result{}, nil
	case <-time.After(batchDelay):
	}
	policy, err := r.readPolicy(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	for id := range r.removed.take() {
		delete(r.state.Clocks, id)
	}
	now, err := r.observe(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	plan := replacement.Next(now.World, r.state)
	again, err := r.carryOut(ctx, policy, now, plan)
	return reconcile.Result{RequeueAfter: again}, err
}

// carryOut persists the state, then acts, then reports. It returns the requeue delay.
func (r *reconciler) carryOut(ctx context.Context, policy *v1alpha1.EvacuationPolicy, now *observed, plan replacement.Plan) (time.Duration, error) {
	if err := r.persist(ctx, policy, &plan); err != nil {
		return 0, err
	}
	r.state = plan.State
	r.warn(policy, &plan)
	acted := false
	for i := range plan.VMs {
		acted = acted || plan.VMs[i].Action != replacement.Nothing
		if err := r.act(ctx, now, &plan.VMs[i]); err != nil {
			return 0, err
		}
	}
	detected, replacing := 0, 0
	for i := range plan.VMs {
		v := &plan.VMs[i]
		if err := r.writeConditions(ctx, now, v); err != nil {
			return 0, err
		}
		if v.Detected != "" {
			detected++
		}
		if v.Replacing != "" {
			replacing++
		}
	}
	r.Meter.TaintedVMIs(detected, replacing)
	if again := plan.Again; !acted || again > 0 && again < recheckAfter {
		return again, nil
	}
	return recheckAfter, nil
}
