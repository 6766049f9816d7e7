// Package budget keeps the disruption budgets of VMs that are to be moved instead of
// stopped. It gathers, decides (evacuation.BudgetFor) and acts.
package budget

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/retry"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Config is what the controller needs. Live reads from the API server, not the cache.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader
	Events   events.EventRecorder
	Settings *settings.Live
}

// workers is how many VMs are reconciled at the same time.
const workers = 8

type reconciler struct {
	Config
	client.Client // reads the cache

	reported sync.Map // by VMI: the names of foreign budgets in its last Event
	unmade   sync.Map // by VMI: why its budget could not be made, as in its last Event
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &kubevirt.VirtualMachineInstance{} })
	later := builder.WithPredicates(index.AfterStart()) // budgets are looked at: their VMI may be gone
	b := ctrl.NewControllerManagedBy(mgr).Named("disruption-budgets").
		Watches(&kubevirt.VirtualMachineInstance{}, &index.VMIs{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(index.OfPod), later).
		Watches(&kubevirt.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(index.OfMigration), later).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(r.ofBudget)).
		WithOptions(failures.Options(mgr, workers))
	return cfg.Settings.Watch(b, index.All(r.Client), index.AfterStart()).Complete(failures.Reconciler(r))
}

// Reconcile makes, corrects or deletes one VM's budget.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	err := r.Get(ctx, req.NamespacedName, vmi)
	if apierrors.IsNotFound(err) {
		r.reported.Delete(req.NamespacedName)
		r.unmade.Delete(req.NamespacedName)
		return result(r.removeOrphans(ctx, req.NamespacedName, ""))
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("VMI: %w", err)
	}
	if err := r.reconcileVMI(ctx, vmi); err != nil {
		return result(err)
	}
	return result(r.removeOrphans(ctx, req.NamespacedName, vmi.UID))
}

func (r *reconciler) reconcileVMI(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	launchers, err := index.Launchers(ctx, r.Client, vmi)
	if err != nil {
		return err
	}
	migrations, err := index.Migrations(ctx, r.Client, vmi)
	if err != nil {
		return err
	}
	have, err := index.Budgets(ctx, r.Client, vmi)
	if err != nil {
		return err
	}
	strategy, _ := evacuation.StrategyOf(vmi, r.Settings.Get().EvictionStrategy)
	facts := evacuation.BudgetFacts{VMI: vmi, Strategy: strategy, ActivePods: len(index.Unspent(launchers, migrations)), Migrations: migrations, Exists: len(have) > 0}
	for i := range have {
		if label := have[i].Labels[kubevirt.MigrationNameLabel]; label != "" {
			facts.Label = label
		}
	}
	want := evacuation.BudgetFor(facts)
	if err := r.act(ctx, vmi, have, want); err != nil {
		return err
	}
	return r.reportForeign(ctx, vmi, launchers)
}

func (r *reconciler) act(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, have []policyv1.PodDisruptionBudget, want evacuation.Budget) error {
	name := evacuation.BudgetName(string(vmi.UID))
	var ours *policyv1.PodDisruptionBudget
	for i := range have {
		if have[i].Name == name {
			ours = &have[i]
		}
	}
	log := r.Log.With("vmi", vmi.Namespace+"/"+vmi.Name, "minAvailable", want.MinAvailable, "why", want.Message)
	switch {
	case want.MinAvailable == 0:
		for i := range have {
			log.Debug("deleting the disruption budget", "budget", have[i].Name)
			if err := r.remove(ctx, &have[i]); err != nil {
				return err
			}
		}
		return nil
	case ours == nil:
		log.Debug("creating the disruption budget", "budget", name)
		err := r.Create(ctx, desired(vmi, want))
		r.reportUnmade(vmi, err)
		if err != nil {
			return fmt.Errorf("disruption budget %s: %w", name, err)
		}
	case !upToDate(ours, desired(vmi, want)):
		log.Info("correcting the disruption budget", "budget", name)
		raw, err := correction(ours, desired(vmi, want))
		if err != nil {
			return fmt.Errorf("disruption budget %s: %w", name, err)
		}
		if err := r.Patch(ctx, ours, client.RawPatch(types.MergePatchType, raw)); err != nil {
			return fmt.Errorf("disruption budget %s: %w", name, err)
		}
	}
	// With two budgets each eviction fails with 500, without one it is allowed. So the
	// second is deleted last.
	for i := range have {
		if have[i].Name == name {
			continue
		}
		log.Info("deleting a second disruption budget", "budget", have[i].Name)
		if err := r.remove(ctx, &have[i]); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a budget in the version that was read.
func (r *reconciler) remove(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	err := r.Delete(ctx, b, client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("disruption budget %s: %w", b.Name, err)
	}
	return nil
}

// removeOrphans deletes budgets of deleted VMIs of this name that the garbage collector
// has left. It asks the API server whether a VMI is deleted: the cache may be stale.
func (r *reconciler) removeOrphans(ctx context.Context, vm types.NamespacedName, present types.UID) error {
	orphans, err := index.BudgetsByName(ctx, r.Client, vm)
	if err != nil {
		return err
	}
	for i := range orphans {
		b := &orphans[i]
		uid := index.BudgetOf(b)
		if uid == present {
			continue
		}
		deleted, err := r.deleted(ctx, vm, uid)
		if err != nil {
			return err
		}
		if deleted {
			if err := r.remove(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleted reports whether the VMI with this UID no longer exists, by a live read.
func (r *reconciler) deleted(ctx context.Context, vm types.NamespacedName, uid types.UID) (bool, error) {
	now := &kubevirt.VirtualMachineInstance{}
	err := r.Live.Get(ctx, vm, now)
	switch {
	case err == nil:
		return now.UID != uid, nil
	case index.Gone(err, vm.Name):
		return true, nil
	}
	return false, fmt.Errorf("VMI %s: %w", vm, err)
}

// result ignores an error in a namespace that is being deleted: nothing can be created
// there.
func result(err error) (reconcile.Result, error) {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

// reportForeign emits an Event with the budgets of other owners that select the launcher,
// once for each set of names. With two budgets the API server fails each eviction.
func (r *reconciler) reportForeign(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, launchers []corev1.Pod) error {
	others, err := index.ForeignBudgets(ctx, r.Client, vmi.Namespace)
	if err != nil {
		return err
	}
	key, names := client.ObjectKeyFromObject(vmi), ""
	for i := range others {
		if selectsOne(&others[i], launchers) {
			names += " " + others[i].Name
		}
	}
	if names == "" {
		r.reported.Delete(key)
	} else if before, _ := r.reported.Swap(key, names); before != names {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "ForeignDisruptionBudget", "Budget",
			"launcher pod is also selected by disruption budget%s: with two budgets each of its evictions fails; change that selector", names)
	}
	return nil
}

func selectsOne(b *policyv1.PodDisruptionBudget, pods []corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return false
	}
	for i := range pods {
		if selector.Matches(labels.Set(pods[i].Labels)) {
			return true
		}
	}
	return false
}

// ofBudget returns the request for the VM that owns a budget. For a foreign budget it
// returns requests for all VMs whose launchers it selects.
func (r *reconciler) ofBudget(ctx context.Context, o client.Object) []reconcile.Request {
	b, ok := o.(*policyv1.PodDisruptionBudget)
	if !ok {
		return nil
	}
	if owner := index.VMIOf(b); owner != nil {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: b.Namespace, Name: owner.Name}}}
	}
	return index.Selected(ctx, r.Client, b)
}
