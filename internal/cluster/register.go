package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/vmgrace/vmgrace/internal/cluster/budget"
	"github.com/vmgrace/vmgrace/internal/cluster/disruption"
	"github.com/vmgrace/vmgrace/internal/cluster/estimate"
	"github.com/vmgrace/vmgrace/internal/cluster/evacuation"
	"github.com/vmgrace/vmgrace/internal/cluster/eviction"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/launcher"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/migration"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/nodecerts"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/cluster/sweep"
	"github.com/vmgrace/vmgrace/internal/cluster/taints"
	"github.com/vmgrace/vmgrace/internal/cluster/virthandler"
	"github.com/vmgrace/vmgrace/internal/cluster/webhookcerts"
)

// setup has what the controllers and webhooks need.
type setup struct {
	ctrl.Manager

	log      *slog.Logger
	live     client.Reader // reads from the API server, not the cache
	keeper   *webhookcerts.Keeper
	meter    *metrics.Meter
	settings *settings.Live
	budgets  bool                    // disruption-budgets is enabled
	nodes    bool                    // nodes may be read
	again    chan event.GenericEvent // migrations that the sweep has found
}

func (s *setup) webhooks() eviction.Config {
	return eviction.Config{
		Log: s.log, Live: s.live, Cached: s.GetCache(), Patch: s.GetClient(), Events: s.GetEventRecorder(userAgent),
		Meter: s.meter, Settings: s.settings, Nodes: s.nodes,
	}
}

func (s *setup) observer() move.Observer {
	return move.Observer{Cache: s.GetClient(), Settings: s.settings, Nodes: s.nodes}
}

// mover returns a Mover that marks VMs, or has KubeVirt move them, which does not let VMIs be
// marked.
func (o *Options) mover(s *setup) taints.Mover {
	if o.BesideKubeVirt {
		return move.Evictions{Migrations: move.Migrations{Client: s.GetClient(), Observer: s.observer()}}
	}
	return move.Marks{Client: s.GetClient()}
}

// launcherAdder returns the function that adds the webhook for launcher pods.
func (o *Options) launcherAdder() func(ctrl.Manager, eviction.Config) error {
	if o.BesideKubeVirt {
		return eviction.AddHolds
	}
	return eviction.AddLaunchers
}

// registered returns the functions behind the names of --controllers.
func (o *Options) registered() map[string]func(*setup) error {
	return map[string]func(*setup) error{
		evictionWebhook: func(s *setup) error { return eviction.AddEvictions(s.Manager, s.webhooks(), s.keeper.ValidKey) },
		launcherWebhook: func(s *setup) error { return o.launcherAdder()(s.Manager, s.webhooks()) },
		launchers: func(s *setup) error {
			return launcher.Add(s.Manager, launcher.Config{Log: s.log, Live: s.live, Events: s.GetEventRecorder(userAgent)})
		},
		disruptionBudgets: func(s *setup) error {
			return budget.Add(s.Manager, budget.Config{Log: s.log, Live: s.live, Events: s.GetEventRecorder(userAgent), Settings: s.settings})
		},
		evacuations: func(s *setup) error {
			return evacuation.Add(s.Manager, evacuation.Config{Log: s.log, Live: s.live, Events: s.GetEventRecorder(userAgent), Observer: s.observer()})
		},
		migrations: func(s *setup) error {
			err := nodecerts.Add(s.Manager, nodecerts.Config{Log: s.log, Live: s.live, Namespace: o.Namespace, Meter: s.meter})
			if err != nil {
				return err
			}
			return migration.Add(s.Manager, migration.Config{Log: s.log, Live: s.live, Events: s.GetEventRecorder(userAgent),
				Settings: s.settings, Meter: s.meter, Budgets: s.budgets, Nodes: s.nodes, Again: s.again})
		},
		podDisruption: func(s *setup) error {
			return disruption.Add(s.Manager, disruption.Config{Log: s.log, Events: s.GetEventRecorder(userAgent), Observer: s.observer(),
				Mover: o.mover(s), BesideKubeVirt: o.BesideKubeVirt})
		},
		taintReplacement: func(s *setup) error {
			if !s.nodes {
				return nil // logged at the start
			}
			return taints.Add(s.Manager, taints.Config{Log: s.log, Events: s.GetEventRecorder(userAgent), Settings: s.settings,
				Meter: s.meter, Mover: o.mover(s), Conditions: !o.BesideKubeVirt})
		},
		estimates: func(s *setup) error {
			if !s.nodes {
				return nil // logged at the start
			}
			return estimate.Add(s.Manager, estimate.Config{Log: s.log, Events: s.GetEventRecorder(userAgent), Settings: s.settings})
		},
	}
}

func (o *Options) register(s *setup) error {
	// controller-runtime serves the endpoints only if there is a check.
	if err := errors.Join(s.AddHealthzCheck("ping", healthz.Ping), s.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	if err := o.addSettings(s); err != nil {
		return err
	}
	if err := o.checkNodeAccess(s); err != nil {
		return err
	}
	s.again = make(chan event.GenericEvent)
	add := o.registered()
	for _, name := range names() {
		if !o.runs(name) {
			continue
		}
		if err := add[name](s); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := o.addSweep(s); err != nil {
		return err
	}
	if o.BesideKubeVirt {
		if err := virthandler.Add(s.Manager, virthandler.Config{Log: s.log, Events: s.GetEventRecorder(userAgent), Settings: s.settings}); err != nil {
			return fmt.Errorf("virt-handler: %w", err)
		}
	}
	if !o.runs(evictionWebhook) && !o.runs(launcherWebhook) {
		return nil
	}
	s.meter.Webhooks(registry.Registry)
	if err := s.keeper.Add(s.Manager, s.meter); err != nil {
		return fmt.Errorf("certificate of the webhooks: %w", err)
	}
	if err := s.AddReadyzCheck("certificate", s.keeper.Ready); err != nil {
		return err
	}
	return s.AddReadyzCheck("webhooks", s.GetWebhookServer().StartedChecker())
}

// addSweep adds the sweep for those of its controllers that run. Beside KubeVirt none of them
// does: marks, launchers, migrations and budgets are KubeVirt's there.
func (o *Options) addSweep(s *setup) error {
	cfg := sweep.Config{
		Log: s.log, Live: s.live, Events: s.GetEventRecorder(userAgent), Settings: s.settings, Meter: s.meter, Nodes: s.nodes, Again: s.again,
		Evacuations: o.runs(evacuations), Migrations: o.runs(migrations), Budgets: o.runs(disruptionBudgets),
	}
	if !cfg.Evacuations && !cfg.Migrations && !cfg.Budgets {
		return nil
	}
	if err := sweep.Add(s.Manager, cfg); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	return nil
}

// checkNodeAccess sets s.nodes. Without the right to read nodes their watch would never
// sync.
func (o *Options) checkNodeAccess(s *setup) error {
	ctx, cancel := context.WithTimeout(context.Background(), accessReviewTimeout)
	defer cancel()
	s.nodes = true
	for _, verb := range []string{"get", "list", "watch"} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "nodes"},
		}}
		if err := s.GetClient().Create(ctx, review); err != nil {
			return fmt.Errorf("ask whether nodes may be read: %w", err)
		}
		s.nodes = s.nodes && review.Status.Allowed
	}
	if s.nodes {
		s.meter.NodesReadable()
		return nil
	}
	s.meter.NodesUnreadable()
	s.log.Warn("nodes cannot be read: no VM is replaced because of a taint, an uncordon takes no mark back; give the ClusterRole get, list and watch of nodes and restart")
	return nil
}

const accessReviewTimeout = 30 * time.Second

// addSettings adds the settings, the controller that reports them, and what reads the cache.
func (o *Options) addSettings(s *setup) error {
	var err error
	if s.settings, err = settings.FromCache(context.Background(), s.GetCache()); err != nil {
		return err
	}
	err = settings.Report(s.Manager, settings.Config{
		Log: s.log, Events: s.GetEventRecorder(userAgent), Meter: s.meter, Live: s.settings, BesideKubeVirt: o.BesideKubeVirt,
	})
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if err := s.AddReadyzCheck("settings", func(*http.Request) error { return s.settings.Known() }); err != nil {
		return err
	}
	return o.addIndexes(s)
}

// addIndexes adds the indexes of the cache, for those that read it.
func (o *Options) addIndexes(s *setup) error {
	if o.runs(launchers) || o.runs(launcherWebhook) && !o.BesideKubeVirt {
		if err := index.AddNaming(context.Background(), s.GetFieldIndexer()); err != nil {
			return fmt.Errorf("index of the cache: %w", err)
		}
	}
	if !o.runs(disruptionBudgets) && !o.runs(evacuations) && !o.runs(migrations) && !o.runs(taintReplacement) && !o.runs(podDisruption) && !o.runs(estimates) && !o.runs(launchers) {
		return nil
	}
	add := index.Add
	if o.BesideKubeVirt {
		add = index.AddVMs
	}
	if err := add(context.Background(), s.GetFieldIndexer()); err != nil {
		return fmt.Errorf("indexes of the cache: %w", err)
	}
	cache := s.GetClient()
	return metrics.CountVMs(registry.Registry, func() (metrics.VMs, bool) { return evacuation.Count(cache, s.settings) })
}
