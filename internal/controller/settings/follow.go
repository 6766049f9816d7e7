package settings

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/internal/controller/meter"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Config is what following the settings needs.
type Config struct {
	Log    *slog.Logger
	Events events.EventRecorder
	Meter  *meter.Meter
	Live   *Live
}

// follower reads all settings whenever one of their objects changes. Only its
// controller's one worker uses it.
type follower struct {
	Config

	cache    client.Reader
	elected  <-chan struct{}
	reported map[string]bool
}

// Follow keeps cfg.Live up to date, in every replica.
func Follow(mgr ctrl.Manager, cfg Config) error {
	f := &follower{Config: cfg, cache: mgr.GetClient(), elected: mgr.Elected(), reported: map[string]bool{}}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return one() })
	everyReplica := false
	return ctrl.NewControllerManagedBy(mgr).Named("settings").
		Watches(&kubevirt.KubeVirt{}, all).
		Watches(&v1alpha1.EvacuationPolicy{}, all).
		WatchesRawSource(source.Func(f.first)).
		WithOptions(controller.Options{NeedLeaderElection: &everyReplica}).
		Complete(f)
}

// first has the settings read where there is no object to tell of them, and
// once more by the replica that has become the one that reports.
func (f *follower) first(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	queue.Add(one()[0])
	go func() {
		select {
		case <-f.elected:
			queue.Add(one()[0])
		case <-ctx.Done():
		}
	}()
	return nil
}

// one: whatever changes, all is read.
func one() []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.Name}}}
}

// complaint is about an object that has something that cannot be used.
type complaint struct {
	about           client.Object
	reason, message string
}

// Reconcile reads the settings.
func (f *follower) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var kubevirts kubevirt.KubeVirtList
	if err := f.cache.List(ctx, &kubevirts); err != nil {
		return reconcile.Result{}, fmt.Errorf("settings: %w", err)
	}
	policy, err := lookup.Policy(ctx, f.cache)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("settings: %w", err)
	}
	counts, others := evacuation.Oldest(kubevirts.Items)
	next, invalid := f.Live.Get().WithKubeVirt(counts)
	var all []complaint
	for _, message := range invalid {
		all = append(all, complaint{counts, "InvalidSetting", message})
	}
	for i := range others {
		all = append(all, complaint{&others[i], "Ignored", fmt.Sprintf(
			"of several KubeVirts the oldest counts, which is %s/%s: remove this one", counts.Namespace, counts.Name)})
	}
	next, invalid = next.WithPolicy(policy)
	for _, message := range invalid {
		all = append(all, complaint{policy, "InvalidSetting", message})
	}
	if !f.Live.Known() || !reflect.DeepEqual(next, f.Live.Get()) {
		f.Log.Info("settings of the cluster", "settings", fmt.Sprintf("%+v", next))
		f.Live.Set(next)
	}
	f.report(all)
	return reconcile.Result{}, nil
}

// report tells of each complaint once, as long as it lasts: by the replica that
// was elected, so that it is not told twice.
func (f *follower) report(all []complaint) {
	f.Meter.InvalidSettings(len(all))
	select {
	case <-f.elected:
	default:
		return
	}
	now := map[string]bool{}
	for _, c := range all {
		key := string(c.about.GetUID()) + c.message
		now[key] = true
		if f.reported[key] {
			continue
		}
		f.Log.Warn("a setting is not used", "object", c.about.GetName(), "reason", c.reason, "why", c.message)
		f.Events.Eventf(c.about, nil, corev1.EventTypeWarning, c.reason, "Read", "%s", c.message)
	}
	f.reported = now
}
