package migration

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/index"
	"github.com/vmgrace/vmgrace/internal/evacuation"
	"github.com/vmgrace/vmgrace/internal/migration"
)

// settleFor is how long the queue waits for further changes after one: many come at once.
const settleFor = 30 * time.Millisecond

// catchUp is how long to wait before looking at a stale cache again.
const catchUp = 100 * time.Millisecond

// queue decides which migrations have a turn, for all of them at once, after each relevant
// change. It has one worker, and one key.
type queue struct {
	*reconciler

	caughtUp bool // the cache shows what a former leader has begun
}

// addQueue adds the queue to the manager.
func (r *reconciler) addQueue(mgr ctrl.Manager) error {
	q := &queue{reconciler: r}
	relevant := builder.WithPredicates(turnChanges())
	b := ctrl.NewControllerManagedBy(mgr).Named("migration-queue").
		Watches(&object{}, soon(), relevant).
		Watches(&kubevirt.VirtualMachineInstance{}, soon(), relevant).
		Watches(&corev1.Pod{}, soon(), relevant).
		WatchesRawSource(source.Channel(r.retry, soon())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1})
	return r.Settings.Watch(b, func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} }).Complete(q)
}

// Reconcile computes the turns, and enqueues the migrations that have a new one.
func (q *queue) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if !q.caughtUp {
		var err error
		if q.caughtUp, err = q.showsAllBegun(ctx); err != nil || !q.caughtUp {
			return reconcile.Result{RequeueAfter: catchUp}, err
		}
	}
	now := time.Now()
	all, again, err := q.moving(ctx, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	fresh, retry := q.turns.compute(all, q.Settings.Get(), now)
	for _, m := range fresh {
		select {
		case q.granted <- event.GenericEvent{Object: m}:
		case <-ctx.Done():
			return reconcile.Result{}, ctx.Err()
		}
	}
	if again == 0 || retry > 0 && retry < again {
		again = retry
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// showsAllBegun reports whether the cache shows all begun migrations as begun: it may lag
// the writes of a former leader. The turns note the writes of this one.
func (q *queue) showsAllBegun(ctx context.Context) (bool, error) {
	var live kubevirt.VirtualMachineInstanceMigrationList
	if err := q.Live.List(ctx, &live); err != nil {
		return false, fmt.Errorf("migrations: %w", err)
	}
	for i := range live.Items {
		m, cached := &live.Items[i], &object{}
		if m.Final() || evacuation.PhaseOf(m) == kubevirt.MigrationPending {
			continue
		}
		err := q.Get(ctx, client.ObjectKeyFromObject(m), cached)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("migration %s: %w", name(m), err)
		}
		if cached.UID != m.UID || !cached.Final() && !migration.NotBefore(cached, m.Status.Phase) {
			return false, nil
		}
	}
	return true, nil
}

// moving returns the unfinished migrations, from the cache. One of them changes without an
// event after again; 0 if none does.
func (q *queue) moving(ctx context.Context, now time.Time) (all []evacuation.Moving, again time.Duration, err error) {
	list, err := index.Unfinished(ctx, q.Client)
	if err != nil {
		return nil, 0, err
	}
	var pending []*object
	set := q.Settings.Get()
	handed := 0 // to the agents, without a slot of those for held shutdowns
	for i := range list {
		m := &list[i]
		if evacuation.PhaseOf(m) == kubevirt.MigrationPending {
			pending = append(pending, m)
			continue
		}
		next := evacuation.Moving{Migration: m, Node: migration.StateOf(m).SourceNode, Target: migration.StateOf(m).TargetNode}
		left, err := q.readStarted(ctx, &next, now)
		if err != nil {
			return nil, 0, err
		}
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		if !set.HasOwnSlots(&next) && migration.NotBefore(m, kubevirt.MigrationScheduled) {
			handed++
		}
		all = append(all, next)
	}
	waiting, err := q.pending(ctx, pending, handed)
	return append(all, waiting...), again, err
}

// pending returns the pending migrations. If those that are handed to the agents take all slots of
// the cluster, only those can begin whose VMs' launchers are being deleted: the VMs of others
// need not be read.
func (q *queue) pending(ctx context.Context, migrations []*object, handed int) (all []evacuation.Moving, err error) {
	full := handed >= q.Settings.Get().PerCluster
	var leaving map[client.ObjectKey]bool
	if full && len(migrations) > 0 {
		if leaving, err = index.Leaving(ctx, q.Client); err != nil {
			return nil, err
		}
	}
	for _, m := range migrations {
		next := evacuation.Moving{Migration: m, Node: migration.StateOf(m).SourceNode}
		if full && !leaving[client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}] {
			next.Blocked = true
		} else if err := q.readPending(ctx, &next); err != nil {
			return nil, err
		}
		all = append(all, next)
	}
	return all, nil
}

// readPending sets the node and the hold of a pending migration's VM. Without a VMI, or with
// more than one launcher pod, it cannot start.
func (q *queue) readPending(ctx context.Context, m *evacuation.Moving) error {
	launchers, vmi, err := q.vm(ctx, m.Migration)
	if err != nil {
		return err
	}
	if m.Blocked = vmi == nil; m.Blocked {
		return nil
	}
	if len(launchers) > 1 {
		migrations, err := index.Migrations(ctx, q.Client, client.ObjectKeyFromObject(vmi))
		if err != nil {
			return err
		}
		launchers = index.Unspent(launchers, migrations)
		m.Blocked = len(launchers) > 1
	}
	m.Node, m.Marked = vmi.Node(), vmi.Marked()
	for i := range launchers {
		m.HeldUntil = index.HeldUntil(&launchers[i], vmi)
	}
	return nil
}

// readStarted sets the hold of a started migration's VM, the node of its target pod, and
// whether that waits for the scheduler; if not yet, left is the time until it does.
func (q *queue) readStarted(ctx context.Context, m *evacuation.Moving, now time.Time) (left time.Duration, err error) {
	launchers, vmi, err := q.vm(ctx, m.Migration)
	if err != nil || vmi == nil {
		return 0, err
	}
	target := migration.TargetPodName(m.Migration.Spec.VMIName, string(m.Migration.UID))
	for i := range launchers {
		p := &launchers[i]
		if string(p.UID) == migration.StateOf(m.Migration).SourcePodUID {
			m.HeldUntil = index.HeldUntil(p, vmi)
		}
		if p.Name != target {
			continue
		}
		if m.Target = p.Spec.NodeName; evacuation.PhaseOf(m.Migration) != kubevirt.MigrationScheduling {
			continue
		}
		facts := podFacts(p, vmi)
		if m.Waits = facts.Unplaced(now); !m.Waits && p.Spec.NodeName == "" {
			left = max(facts.Created.Add(migration.PlacementTimeout).Sub(now), time.Second)
		}
	}
	return left, nil
}

// vm returns a migration's VM with its launchers, nil if there is none. They are those of the cache, not
// copies: thousands of migrations may wait.
func (q *queue) vm(ctx context.Context, m *object) ([]corev1.Pod, *kubevirt.VirtualMachineInstance, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := q.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}, vmi, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	launchers, err := index.Launchers(ctx, q.Client, vmi, client.UnsafeDisableDeepCopy)
	return launchers, vmi, err
}

// soon enqueues the queue's key.
func soon() handler.EventHandler {
	add := func(q requests) { q.AddAfter(reconcile.Request{}, settleFor) }
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, _ event.CreateEvent, q requests) { add(q) },
		UpdateFunc:  func(_ context.Context, _ event.UpdateEvent, q requests) { add(q) },
		DeleteFunc:  func(_ context.Context, _ event.DeleteEvent, q requests) { add(q) },
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q requests) { add(q) },
	}
}

// turnChanges passes updates that a turn may depend on.
func turnChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return turnFactsOf(e.ObjectOld) != turnFactsOf(e.ObjectNew)
	}}
}

// turnFacts holds what turns depend on of an object.
type turnFacts struct {
	phase, node, priority, cause string
	deleting, unschedulable      bool
	held                         string
}

func turnFactsOf(o client.Object) (f turnFacts) {
	f.deleting = o.GetDeletionTimestamp() != nil
	switch o := o.(type) {
	case *object:
		f.phase = string(o.Status.Phase)
		if o.Spec.Priority != nil {
			f.priority = *o.Spec.Priority
		}
	case *kubevirt.VirtualMachineInstance:
		f.node, f.phase, f.held = o.Node(), string(o.Status.Phase), o.Status.EvacuationNodeName
		f.cause = evacuation.ExplanationOf(o).Cause
	case *corev1.Pod:
		facts := podFacts(o, nil)
		f.node, f.phase, f.unschedulable = o.Spec.NodeName, string(o.Status.Phase), facts.Unschedulable != ""
		f.held, f.cause = o.Annotations[evacuation.HoldForAnnotation], index.Disruption(o)
	}
	return f
}
