package controller

import (
	"fmt"
	"log/slog"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/vmgrace/vmgrace/internal/controller/certs"
	"github.com/vmgrace/vmgrace/internal/controller/eviction"
	"github.com/vmgrace/vmgrace/internal/controller/meter"
	"github.com/vmgrace/vmgrace/internal/controller/settings"
)

// setup is what a controller may take from.
type setup struct {
	ctrl.Manager

	log      *slog.Logger
	live     client.Reader // asks the API server, not the cache
	meter    *meter.Meter
	settings *settings.Live
}

func (s *setup) webhooks() eviction.Config {
	return eviction.Config{
		Log: s.log, Live: s.live, Patch: s.GetClient(), Events: s.GetEventRecorder(userAgent),
		Meter: s.meter, Settings: s.settings,
	}
}

// registered is what --controllers chooses from: nil is not built yet.
func registered() map[string]func(*setup) error {
	return map[string]func(*setup) error{
		evictionWebhook:   func(s *setup) error { eviction.AddEvictions(s.Manager, s.webhooks()); return nil },
		launcherWebhook:   func(s *setup) error { eviction.AddLaunchers(s.Manager, s.webhooks()); return nil },
		disruptionBudgets: nil,
		evacuations:       nil,
		migrations:        nil,
		podDisruption:     nil,
		taintReplacement:  nil,
	}
}

func (o *Options) register(s *setup, keeper *certs.Keeper) error {
	if err := s.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	add := registered()
	for _, name := range names() {
		switch {
		case !o.runs(name):
			continue
		case add[name] == nil:
			s.log.Info("not in this version", "controller", name)
			continue
		}
		if err := add[name](s); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if !o.runs(evictionWebhook) && !o.runs(launcherWebhook) {
		return nil
	}
	if err := keeper.Add(s.Manager, s.meter); err != nil {
		return fmt.Errorf("certificate of the webhooks: %w", err)
	}
	if err := s.AddReadyzCheck("certificate", keeper.Ready); err != nil {
		return err
	}
	return s.AddReadyzCheck("webhooks", s.GetWebhookServer().StartedChecker())
}
