package settings

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// Config is what Report needs.
type Config struct {
	Log    *slog.Logger
	Events events.EventRecorder
	Meter  *metrics.Meter
	Live   *Live
	// BesideKubeVirt means that feature gates are KubeVirt's unless they are spelled like ours.
	BesideKubeVirt bool
}

// reporter logs the settings and reports those that are not used. Only the one worker of its
// controller uses it.
type reporter struct {
	Config

	elected  <-chan struct{}
	logged   string
	reported map[string]bool
}

// Report adds the controller that reports the settings. It runs in every replica.
func Report(mgr ctrl.Manager, cfg Config) error {
	r := &reporter{Config: cfg, elected: mgr.Elected(), reported: map[string]bool{}}
	b := ctrl.NewControllerManagedBy(mgr).Named("settings").
		WatchesRawSource(source.Func(r.initial)).
		WithOptions(controller.Options{NeedLeaderElection: new(false)})
	return cfg.Live.Watch(b, func(context.Context, client.Object) []reconcile.Request { return request() }).Complete(r)
}

// initial enqueues a first request, for clusters without any of the objects. It enqueues
// another when this replica is elected and has to report.
func (r *reporter) initial(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	queue.Add(request()[0])
	go func() {
		select {
		case <-r.elected:
			queue.Add(request()[0])
		case <-ctx.Done():
		}
	}()
	return nil
}

// request returns the same request for all objects: each reconcile reads all settings.
func request() []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.Name}}}
}

// Reconcile reads the settings and reports them.
func (r *reporter) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	now, err := r.Live.read()
	if err != nil {
		return reconcile.Result{}, err
	}
	if text := fmt.Sprintf("%+v", now.Settings); text != r.logged {
		r.logged = text
		r.Log.Info("settings of the cluster", "settings", text)
	}
	if r.BesideKubeVirt {
		now.problems = slices.DeleteFunc(now.problems, func(p problem) bool { return p.foreign })
	}
	r.report(now.problems)
	return reconcile.Result{}, nil
}

// actionLength is less than the API server's 128 by the length of "…".
const actionLength = 125

// report logs each problem and emits an Event, once while it lasts. Only the elected
// replica does so.
func (r *reporter) report(all []problem) {
	r.Meter.InvalidSettings(len(all))
	select {
	case <-r.elected:
	default:
		return
	}
	now := map[string]bool{}
	for _, p := range all {
		key := string(p.about.GetUID()) + p.message
		now[key] = true
		if r.reported[key] {
			continue
		}
		r.Log.Warn("a setting is not used", "object", p.about.GetName(), "reason", p.reason, "why", p.message)
		// To client-go Events are the same whose notes alone differ: the action has the setting's name.
		r.Events.Eventf(p.about, nil, corev1.EventTypeWarning, p.reason, oneline.Cut(p.message, actionLength), "%s", p.message)
	}
	r.reported = now
}
