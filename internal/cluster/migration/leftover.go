package migration

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// movedGraceSeconds is the grace period of a pod whose VM has moved: the API server's default.
// The pod's own grace period is for the VM.
const movedGraceSeconds = 30

// leftovers deletes launcher pods that have outlived their VM. It gathers, decides
// (migration.Leftovers) and acts.
type leftovers struct {
	client.Client // reads the cache

	log    *slog.Logger
	live   client.Reader
	events events.EventRecorder
	ended  sync.Map // by VM's name: ended
}

// ended is when a VM was first seen to have ended.
type ended struct {
	uid types.UID
	at  time.Time
}

func (r *reconciler) addLeftovers(mgr ctrl.Manager) error {
	l := &leftovers{Client: r.Client, log: r.Log, live: r.Live, events: r.Events}
	later := builder.WithPredicates(index.AfterStart())
	return ctrl.NewControllerManagedBy(mgr).Named("migration-leftovers").
		Watches(&kubevirt.VirtualMachineInstance{}, &index.VMIs{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(index.OfPod), later).
		Watches(&object{}, handler.EnqueueRequestsFromMapFunc(index.OfMigration), later).
		Complete(l)
}

// Reconcile deletes the leftover launcher pods of one VM.
func (l *leftovers) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := l.Get(ctx, req.NamespacedName, vmi); err != nil {
		if client.IgnoreNotFound(err) == nil {
			l.ended.Delete(req.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	launchers, err := index.Launchers(ctx, l.Client, vmi)
	if err != nil || len(launchers) == 0 || len(launchers) == 1 && !vmi.Final() && launchers[0].Spec.NodeName == vmi.Node() {
		return reconcile.Result{}, err
	}
	all, again, err := l.of(ctx, vmi, launchers)
	if err != nil || len(all) == 0 {
		return reconcile.Result{RequeueAfter: again}, err
	}
	// Decide a deletion by the API server's VMI, not by the cache's.
	if err := l.live.Get(ctx, req.NamespacedName, vmi); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if all, again, err = l.of(ctx, vmi, launchers); err != nil {
		return reconcile.Result{}, err
	}
	for i := range all {
		if err := l.remove(ctx, vmi, &all[i]); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

func (l *leftovers) of(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, launchers []corev1.Pod) ([]migration.Leftover, time.Duration, error) {
	migrations, err := index.Migrations(ctx, l.Client, vmi)
	if err != nil {
		return nil, 0, err
	}
	now := time.Now()
	f := migration.LeftoverFacts{VMI: vmi, Migrations: migrations, Now: now}
	if vmi.Final() {
		f.FinalSince = l.endedSince(vmi, now)
	}
	pods := make([]migration.Pod, 0, len(launchers))
	for i := range launchers {
		if p := &launchers[i]; p.Labels[kubevirt.CreatedByLabel] == string(vmi.UID) {
			pods = append(pods, *podFacts(p, vmi))
		}
	}
	all, again := migration.Leftovers(f, pods)
	return all, again, nil
}

func (l *leftovers) endedSince(vmi *kubevirt.VirtualMachineInstance, now time.Time) time.Time {
	key := client.ObjectKeyFromObject(vmi)
	seen := ended{vmi.UID, now}
	if before, ok := l.ended.Load(key); ok {
		if e, ok := before.(ended); ok && e.uid == vmi.UID {
			return e.at
		}
	}
	l.ended.Store(key, seen)
	return seen.at
}

// remove deletes the pod with the UID that was read.
func (l *leftovers) remove(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, left *migration.Leftover) error {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = vmi.Namespace, left.Pod.Name
	options := []client.DeleteOption{client.Preconditions{UID: new(types.UID(left.Pod.UID))}}
	if left.Moved {
		options = append(options, client.GracePeriodSeconds(movedGraceSeconds))
	}
	if err := l.Delete(ctx, pod, options...); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("launcher pod %s: %w", pod.Name, err)
	}
	l.log.Info("deleting a launcher pod that has outlived its VM", "vmi", vmi.Namespace+"/"+vmi.Name, "pod", pod.Name, "why", left.Why)
	l.events.Eventf(vmi, nil, corev1.EventTypeNormal, "LauncherLeftOver", "Delete", "launcher pod %s is deleted: %s", pod.Name, left.Why)
	return nil
}
