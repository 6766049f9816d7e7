package eviction

import (
	"log/slog"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Settings are the cluster's, as they are now.
type Settings interface{ Get() evacuation.Settings }

// Meter counts.
type Meter interface {
	Eviction(strategy, verdict string)
	Launcher(result string)
}

// Config is what the webhooks need.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader // asks the API server, not a cache
	Meter    Meter
	Settings Settings
}

// AddEvictions serves the eviction webhook.
func AddEvictions(ctrl.Manager, Config) error { return nil }

// AddLaunchers serves the launcher webhook.
func AddLaunchers(ctrl.Manager, Config) error { return nil }
