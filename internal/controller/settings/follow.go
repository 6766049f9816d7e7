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
	"github.com/vmgrace/vmgrace/internal/controller/index"
	"github.com/vmgrace/vmgrace/internal/controller/metrics"
	"github.com/vmgrace/vmgrace/internal/evacuation"
)

// Config is what Follow needs.
type Config struct {
	Log    *slog.Logger
	Events events.EventRecorder
	Meter  *metrics.Meter
	Live   *Live
	// BesideKubeVirt means that unknown feature gates are KubeVirt's.
	BesideKubeVirt bool
}

// follower reads all settings whenever one of their objects changes. Only the one worker
// of its controller uses it.
type follower struct {
	Config

	cache    client.Reader
	elected  <-chan struct{}
	reported map[string]bool
}

// Follow adds the controller that keeps cfg.Live up to date. It runs in every replica.
func Follow(mgr ctrl.Manager, cfg Config) error {
	f := &follower{Config: cfg, cache: mgr.GetClient(), elected: mgr.Elected(), reported: map[string]bool{}}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request() })
	return ctrl.NewControllerManagedBy(mgr).Named("settings").
		Watches(&kubevirt.KubeVirt{}, all).
		Watches(&v1alpha1.EvacuationPolicy{}, all).
		WatchesRawSource(source.Func(f.initial)).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(f)
}

// initial enqueues a first request, for clusters without any of the objects. It enqueues
// another when this replica is elected and has to report.
func (f *follower) initial(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	queue.Add(request()[0])
	go func() {
		select {
		case <-f.elected:
			queue.Add(request()[0])
		case <-ctx.Done():
		}
	}()
	return nil
}

// request returns the same request for all objects: any change makes the controller read
// all settings.
func request() []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.Name}}}
}

// problem is an invalid or ignored setting, with the object that has it.
type problem struct {
	about           client.Object
	reason, message string
}

// Reconcile reads the settings.
func (f *follower) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var kubevirts kubevirt.KubeVirtList
	if err := f.cache.List(ctx, &kubevirts); err != nil {
		return reconcile.Result{}, fmt.Errorf("settings: %w", err)
	}
	policy, err := index.Policy(ctx, f.cache)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("settings: %w", err)
	}
	counts, others := evacuation.Oldest(kubevirts.Items)
	next, invalid := f.Live.Get().WithKubeVirt(counts)
	var all []problem
	for _, message := range invalid {
		all = append(all, problem{counts, "InvalidSetting", message})
	}
	if !f.BesideKubeVirt {
		for _, message := range next.UnknownGates() {
			all = append(all, problem{counts, "UnknownFeatureGate", message})
		}
	}
	for i := range others {
		all = append(all, problem{&others[i], "Ignored", fmt.Sprintf(
			"of several KubeVirts the oldest counts, which is %s/%s: remove this one", counts.Namespace, counts.Name)})
	}
	next, invalid = next.WithPolicy(policy)
	for _, message := range invalid {
		all = append(all, problem{policy, "InvalidSetting", message})
	}
	if !f.Live.Known() || !reflect.DeepEqual(next, f.Live.Get()) {
		f.Log.Info("settings of the cluster", "settings", fmt.Sprintf("%+v", next))
		f.Live.Set(next)
	}
	f.report(all)
	return reconcile.Result{}, nil
}

// report logs each problem and emits an Event, once while it lasts. Only the elected
// replica does so.
func (f *follower) report(all []problem) {
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
