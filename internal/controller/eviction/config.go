package eviction

import (
	"log/slog"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Where the webhooks are served.
const (
	EvictionPath = "/evict-pod"
	LauncherPath = "/create-launcher-pod"
)

// answerWithin is how long an answer may take: the API server waits for 10 s,
// and without an answer it lets the eviction through.
const answerWithin = 8 * time.Second

// Settings are the cluster's, as they are now.
type Settings interface {
	Get() evacuation.Settings
	// Known is false before the cluster was asked for them.
	Known() bool
}

// Meter counts.
type Meter interface {
	Eviction(strategy, verdict string)
	Launcher(result string)
}

// Config is what the webhooks need.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader // asks the API server, not a cache
	Patch    client.Client
	Events   events.EventRecorder
	Meter    Meter
	Settings Settings
}

// AddEvictions serves the eviction webhook, in every replica.
func AddEvictions(mgr ctrl.Manager, cfg Config) {
	mgr.GetWebhookServer().Register(EvictionPath, &webhook.Admission{Handler: &evictions{cfg, reader{cfg.Live}, marker{cfg.Live, cfg.Patch}}})
}

// AddLaunchers serves the launcher webhook, in every replica.
func AddLaunchers(mgr ctrl.Manager, cfg Config) {
	mgr.GetWebhookServer().Register(LauncherPath, &webhook.Admission{Handler: &launchers{cfg, reader{cfg.Live}}})
}
