package eviction

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/internal/controller/meter"
	"github.com/vmgrace/vmgrace/internal/controller/settings"
)

// Where the webhooks are served.
const (
	EvictionPath = "/evict-pod"
	LauncherPath = "/create-launcher-pod"
)

// answerWithin is how long an answer may take: the API server waits for 10 s,
// and without an answer it lets the eviction through.
const answerWithin = 8 * time.Second

// within bounds an answer. It is given also where this replica is told to end
// meanwhile, which cancels the request's context: a mark may be written by then.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
}

// Config is what the webhooks need.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader // asks the API server, not a cache
	Patch    client.Client
	Events   events.EventRecorder
	Meter    *meter.Meter
	Settings *settings.Live
}

// AddEvictions serves the eviction webhook, in every replica, to those who know
// the key behind its path: it marks VMs of all namespaces.
func AddEvictions(mgr ctrl.Manager, cfg Config, knows func(key string) bool) {
	server := mgr.GetWebhookServer()
	stranger := &webhook.Admission{Handler: admission.HandlerFunc(refuse)}
	answers := &webhook.Admission{Handler: &evictions{cfg}}
	server.Register(EvictionPath, stranger)
	server.Register(EvictionPath+"/{key}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if knows(r.PathValue("key")) {
			answers.ServeHTTP(w, r)
			return
		}
		stranger.ServeHTTP(w, r)
	}))
}

// refuse reads and writes nothing. An API server that has not heard of the key
// yet asks here too: who evicts is told to try again, as nobody protects a VM
// where a webhook gives no answer.
func refuse(context.Context, admission.Request) admission.Response {
	return tooManyRequests("vmgrace: this review does not have the key of the webhook configuration vmgrace-cluster-controller, which cluster-controller is about to write; try again")
}

// AddLaunchers serves the launcher webhook, in every replica.
func AddLaunchers(mgr ctrl.Manager, cfg Config) {
	mgr.GetWebhookServer().Register(LauncherPath, &webhook.Admission{Handler: &launchers{cfg}})
}
