package migration

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
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
	// vms has the unfinished migrations as they were last read, by their VMs. Thousands may wait: only
	// those of VMs of which something has changed are read again. nil before the first look.
	vms     map[types.NamespacedName][]evacuation.Moving
	changed changedVMs
}

// addQueue adds the queue to the manager.
func (r *reconciler) addQueue(mgr ctrl.Manager) error {
	q := &queue{reconciler: r}
	soon := q.soon()
	b := ctrl.NewControllerManagedBy(mgr).Named("migration-queue").
		Watches(&object{}, soon).
		Watches(&kubevirt.VirtualMachineInstance{}, soon).
		Watches(&corev1.Pod{}, soon).
		WatchesRawSource(source.Channel(r.retry, soon)).
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
	if q.vms == nil {
		q.changed.take() // at the start all VMs are noted: those with unfinished migrations are listed here
		list, err := index.Unfinished(ctx, q.Client)
		if err != nil {
			return nil, 0, err
		}
		q.vms = map[types.NamespacedName][]evacuation.Moving{}
		for i := range list {
			q.changed.note(&list[i])
		}
	}
	changed := q.changed.take()
	for vm := range changed {
		of, left, err := q.read(ctx, vm, now)
		if err != nil {
			q.vms = nil // the next look reads all
			return nil, 0, err
		}
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		if q.vms[vm] = of; len(of) == 0 {
			delete(q.vms, vm)
		}
	}
	for _, of := range q.vms {
		all = append(all, of...)
	}
	return all, again, nil
}

// read returns the unfinished migrations of a VM. One of them changes without an event after left, 0
// if none does. Those that have begun change with the time: their VM is read at each turn.
func (q *queue) read(ctx context.Context, vm types.NamespacedName, now time.Time) (all []evacuation.Moving, left time.Duration, err error) {
	list, err := index.UnfinishedOf(ctx, q.Client, vm)
	if err != nil {
		return nil, 0, err
	}
	for i := range list {
		m := &list[i]
		next := evacuation.Moving{Migration: m, VMI: migration.StateOf(m).VMIUID, Node: migration.StateOf(m).SourceNode, Target: migration.StateOf(m).TargetNode,
			Undecided: q.phases.isUndecided(m.UID)}
		if evacuation.PhaseOf(m) == kubevirt.MigrationPending {
			err = q.readPending(ctx, &next)
		} else {
			var until time.Duration
			until, err = q.readStarted(ctx, &next, now)
			if until > 0 && (left == 0 || until < left) {
				left = until
			}
			q.changed.note(m)
		}
		if err != nil {
			return nil, 0, err
		}
		all = append(all, next)
	}
	return all, left, nil
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
		migrations, err := index.Migrations(ctx, q.Client, vmi)
		if err != nil {
			return err
		}
		launchers = index.Unspent(launchers, migrations)
		m.Blocked = len(launchers) > 1
	}
	why := evacuation.ExplanationOf(vmi)
	m.VMI, m.Node, m.Marked, m.Descheduler = string(vmi.UID), vmi.Node(), vmi.Marked(), why.Descheduler
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
