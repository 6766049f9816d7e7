// Package launcher links launcher pods to the VMIs that they name, where the launcher webhook has
// not, and writes the phase and the node of VMIs whose phase nobody else writes. It gathers, decides (launcher.Refusal,
// launcher.Next) and acts.
package launcher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/retry"
	"github.com/vmgrace/vmgrace/internal/rules/launcher"
)

// Config is what the controller needs. Live reads from the API server, not the cache.
type Config struct {
	Log    *slog.Logger
	Live   client.Reader
	Events events.EventRecorder
}

// workers is how many VMs are reconciled at the same time.
const workers = 8

type reconciler struct {
	Config
	client.Client // reads the cache

	ends    sync.Map // by VM: end, of its last launcher that is gone
	refused sync.Map // by VM: the UID of the pod in the last Event that one is not linked
}

// end is what is known of a launcher pod that is gone.
type end struct {
	pod launcher.Pod // only its UID until the event of its deletion has come
	at  time.Time    // since when that is awaited; zero if it has come
}

// awaited is for how long the event of a deletion may come after the cache has lost the pod.
const awaited = 2 * time.Second

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &kubevirt.VirtualMachineInstance{} })
	later := builder.WithPredicates(index.AfterStart())
	return ctrl.NewControllerManagedBy(mgr).Named("launcher").
		Watches(&kubevirt.VirtualMachineInstance{}, &index.VMIs{}).
		Watches(&corev1.Pod{}, r.pods(), later).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(index.OfMigration), later).
		WithOptions(failures.Options(mgr, workers)).
		Complete(failures.Reconciler(r))
}

// pods enqueues the VMs of pods. Of a pod that is deleted it keeps how it had ended: kubelet
// removes a pod that is being deleted at once after its end.
func (r *reconciler) pods() handler.EventHandler {
	add := func(ctx context.Context, o client.Object, q queue) {
		for _, of := range index.OfPod(ctx, o) {
			q.Add(of)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			p, ok := e.Object.(*corev1.Pod)
			for _, of := range index.OfPod(ctx, e.Object) {
				if ok {
					r.ends.Store(of.NamespacedName, end{pod: index.LauncherFacts([]corev1.Pod{*p})[0]})
				}
				q.Add(of)
			}
		},
	}
}

// Reconcile links one VM's launcher and writes its VMI's status.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Get(ctx, req.NamespacedName, vmi); err != nil {
		if apierrors.IsNotFound(err) {
			r.ends.Delete(req.NamespacedName)
			r.refused.Delete(req.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	f, err := r.facts(ctx, req, vmi)
	if err != nil {
		return reconcile.Result{}, err
	}
	if done, err := r.report(ctx, f); done || err != nil {
		return reconcile.Result{}, err // which is an event
	}
	if linked, again, err := r.link(ctx, vmi, f.Pods); linked || again > 0 || err != nil {
		return reconcile.Result{RequeueAfter: again}, err // the link is an event
	}
	step := launcher.Next(f)
	if step.Unknown {
		if left := r.awaits(req, step.Launcher.PodUID); left > 0 {
			return reconcile.Result{RequeueAfter: left}, nil
		}
	}
	if step.Final {
		if i := slices.IndexFunc(f.Pods, func(p launcher.Pod) bool { return p.UID == step.Launcher.PodUID }); i >= 0 {
			f.Gone = f.Pods[i] // by now it may be
		}
		if f, err = r.now(ctx, req, f.Gone); err != nil || f.VMI == nil {
			return reconcile.Result{}, err
		}
		step = launcher.Next(f)
	}
	return reconcile.Result{}, r.act(ctx, f.VMI, step)
}

// facts returns what the cache knows of a VMI.
func (r *reconciler) facts(ctx context.Context, req reconcile.Request, vmi *kubevirt.VirtualMachineInstance) (f launcher.Facts, err error) {
	pods, err := index.Naming(ctx, r.Client, req.NamespacedName)
	if err != nil {
		return f, err
	}
	f = launcher.Facts{VMI: vmi, Pods: index.LauncherFacts(pods), Gone: r.gone(req), Others: index.PhaseOfOthers(vmi)}
	if vmi.Final() {
		r.ends.Delete(req.NamespacedName)
	}
	f.Migrations, err = index.Migrations(ctx, r.Client, vmi)
	return f, err
}

func (r *reconciler) gone(req reconcile.Request) launcher.Pod {
	known, _ := r.ends.Load(req.NamespacedName)
	e, _ := known.(end)
	return e.pod
}

// awaits returns for how long the event of a pod's deletion is still awaited: the cache loses the
// pod before. After a restart there is none.
func (r *reconciler) awaits(req reconcile.Request, uid string) time.Duration {
	known, _ := r.ends.LoadOrStore(req.NamespacedName, end{pod: launcher.Pod{UID: uid}, at: time.Now()})
	e, ok := known.(end)
	if !ok || e.pod.UID != uid { // another pod's; a deletion that is told of meanwhile counts
		r.ends.CompareAndDelete(req.NamespacedName, known)
		return awaited
	}
	if e.at.IsZero() {
		return 0
	}
	return awaited - time.Since(e.at)
}

// now reads the facts from the API server: a VM that has ended does so for good. The VMI is read
// last. It has the node to which a migration has moved the VM before the migration has ended. The
// VMI is nil if it does not exist.
func (r *reconciler) now(ctx context.Context, req reconcile.Request, gone launcher.Pod) (f launcher.Facts, err error) {
	f.Gone = gone
	if f.Migrations, err = index.MigrationsNamedNow(ctx, r.Live, req.NamespacedName); err != nil {
		return f, err
	}
	pods, err := index.NamingNow(ctx, r.Live, req.NamespacedName)
	if err != nil {
		return f, err
	}
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, req.NamespacedName, vmi); err != nil {
		return f, client.IgnoreNotFound(err)
	}
	f.VMI, f.Pods, f.Others = vmi, index.LauncherFacts(pods), index.PhaseOfOthers(vmi)
	return f, r.unlisted(ctx, &f)
}

// unlisted adds the recorded launcher if it exists and somebody has taken its labels: a list does
// not show that it is gone.
func (r *reconciler) unlisted(ctx context.Context, f *launcher.Facts) error {
	is := f.VMI.Status.Launcher
	if is == nil || is.PodUID == "" {
		return nil
	}
	for _, p := range f.Pods {
		if p.UID == is.PodUID {
			return nil
		}
	}
	pod := &corev1.Pod{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: f.VMI.Namespace, Name: is.Pod}, pod)
	switch {
	case index.Gone(err, is.Pod):
		return nil
	case err != nil:
		return fmt.Errorf("launcher pod %s: %w", is.Pod, err)
	case string(pod.UID) != is.PodUID:
		return nil
	}
	p := index.LauncherFacts([]corev1.Pod{*pod})[0]
	p.VMIUID = string(f.VMI.UID)
	f.Pods = append(f.Pods, p)
	return nil
}
