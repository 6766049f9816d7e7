// Package virthandler says beforehand, in the EvacuationPolicy's status and in an Event, which
// NoExecute taints would end KubeVirt's virt-handler on a node: without it no VM is moved away
// from there. It only reads and reports.
package virthandler

import (
	"context"
	"fmt"
	"log/slog"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/retry"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// App is the value of KubeVirt's label kubevirt.io of virt-handler.
const App = "virt-handler"

// longest is the length of a condition's message.
const longest = 800

// Config is what the controller needs.
type Config struct {
	Log      *slog.Logger
	Events   events.EventRecorder
	Settings *settings.Live
}

type reconciler struct {
	Config
	client.Client // reads the cache, which has no other DaemonSets
}

// Add adds the controller to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{Config: cfg, Client: mgr.GetClient()}
	failures := retry.New(cfg.Log, cfg.Events, r.Client, func() client.Object { return &v1alpha1.EvacuationPolicy{} })
	always := func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.Name}}}
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("virt-handler").
		Watches(&appsv1.DaemonSet{}, handler.EnqueueRequestsFromMapFunc(always)).
		WithOptions(failures.Options(mgr, 1))
	return cfg.Settings.Watch(b, always).Complete(failures.Reconciler(r))
}

// Reconcile writes the policy's condition, and emits an Event if it has become False.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	policy, err := index.Policy(ctx, r.Client)
	if policy == nil || err != nil {
		return reconcile.Result{}, err
	}
	var handlers appsv1.DaemonSetList
	if err := r.List(ctx, &handlers); err != nil {
		return reconcile.Result{}, fmt.Errorf("virt-handler: %w", err)
	}
	set := r.Settings.Get()
	before := policy.DeepCopy()
	const kind = v1alpha1.ConditionVirtHandlerTolerates
	if c := condition(policy, handlers.Items, &set); c == nil {
		meta.RemoveStatusCondition(&policy.Status.Conditions, kind)
	} else {
		meta.SetStatusCondition(&policy.Status.Conditions, *c)
	}
	if equality.Semantic.DeepEqual(before.Status, policy.Status) {
		return reconcile.Result{}, nil
	}
	if err := r.Status().Patch(ctx, policy, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return reconcile.Result{}, fmt.Errorf("status of the EvacuationPolicy: %w", err)
	}
	if c := meta.FindStatusCondition(policy.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse && !meta.IsStatusConditionFalse(before.Status.Conditions, kind) {
		r.Log.Warn("a NoExecute taint would end virt-handler", "why", c.Message)
		r.Events.Eventf(policy, nil, corev1.EventTypeWarning, c.Reason, "Estimate", "%s", c.Message)
	}
	return reconcile.Result{}, nil
}

// condition returns VirtHandlerTolerates, nil if no taint moves VMs.
func condition(policy *v1alpha1.EvacuationPolicy, handlers []appsv1.DaemonSet, set *evacuation.Settings) *metav1.Condition {
	keys := keysOf(policy)
	if len(keys) == 0 && !set.Gate(evacuation.GateNoExecute) {
		return nil
	}
	c := &metav1.Condition{Type: v1alpha1.ConditionVirtHandlerTolerates, Status: metav1.ConditionTrue, Reason: "Tolerated", ObservedGeneration: policy.Generation}
	if len(handlers) == 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NotFound", "there is no DaemonSet with the label kubevirt.io=virt-handler"
		return c
	}
	missing := untolerated(&corev1.Pod{Spec: handlers[0].Spec.Template.Spec}, keys)
	c.Message = "virt-handler tolerates the NoExecute taints that vmgrace knows of"
	if missing != "" {
		c.Status, c.Reason = metav1.ConditionFalse, "VirtHandlerNotTolerating"
		c.Message = oneline.Cut(fmt.Sprintf("DaemonSet %s/%s does not tolerate NoExecute taints with %s: a node that gets one loses virt-handler, and its VMs are not moved",
			handlers[0].Namespace, handlers[0].Name, missing), longest)
	}
	return c
}
