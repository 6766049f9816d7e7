package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
)

// Paths of the webhooks.
const (
	EvictionPath = "/evict-pod"
	LauncherPath = "/create-launcher-pod"
)

// answerWithin bounds an answer. After 10 s the API server stops waiting and allows the
// eviction (failurePolicy Ignore).
const answerWithin = 8 * time.Second

// answerContext returns the context of one answer. It outlives the request's context,
// which ends when this replica shuts down: a mark may have been written by then.
func answerContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
}

// Config is what the webhooks need.
type Config struct {
	Log      *slog.Logger
	Live     client.Reader // reads from the API server, not the cache
	Cached   client.Reader
	Patch    client.Client
	Events   events.EventRecorder
	Meter    *metrics.Meter
	Settings *settings.Live
	// Nodes means that nodes may be read.
	Nodes bool
	// Synced reports whether the cache has all that the webhook reads.
	Synced func() bool
}

// AddEvictions registers the eviction webhook, which runs in every replica. It marks VMs
// of all namespaces, so it requires the key at the end of its path.
func AddEvictions(mgr ctrl.Manager, cfg Config, validKey func(key string) bool) error {
	kinds := []client.Object{&policyv1.PodDisruptionBudget{}, &corev1.Pod{}, &kubevirt.VirtualMachineInstance{}}
	if cfg.Nodes {
		kinds = append(kinds, &corev1.Node{})
	}
	if err := cfg.watch(mgr.GetCache(), kinds...); err != nil {
		return err
	}
	server := mgr.GetWebhookServer()
	unauthenticated := &webhook.Admission{Handler: admission.HandlerFunc(refuse)}
	answers := &webhook.Admission{Handler: &evictions{cfg}}
	server.Register(EvictionPath, unauthenticated)
	server.Register(EvictionPath+"/{key}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if validKey(r.PathValue("key")) {
			answers.ServeHTTP(w, r)
			return
		}
		unauthenticated.ServeHTTP(w, r)
	}))
	return nil
}

// watch has the cache filled with what the answers need.
func (c *Config) watch(of cache.Cache, kinds ...client.Object) error {
	var synced []func() bool
	for _, kind := range kinds {
		informer, err := of.GetInformer(context.Background(), kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch of %T: %w", kind, err)
		}
		synced = append(synced, informer.HasSynced)
	}
	c.Synced = func() bool { return !slices.ContainsFunc(synced, func(is func() bool) bool { return !is() }) }
	return nil
}

// refuse answers requests without a valid key. It reads and writes nothing. The API
// server may not have the key yet: 429 makes its client retry, while an error would let
// the eviction through.
func refuse(context.Context, admission.Request) admission.Response {
	return tooManyRequests("vmgrace: this review does not have the key of the webhook configuration vmgrace-cluster-controller, which cluster-controller is about to write; try again")
}

// AddLaunchers registers the launcher webhook, which runs in every replica.
func AddLaunchers(mgr ctrl.Manager, cfg Config) error {
	if err := cfg.watch(mgr.GetCache(), &corev1.Pod{}); err != nil {
		return err
	}
	mgr.GetWebhookServer().Register(LauncherPath, &webhook.Admission{Handler: &launchers{cfg}})
	return nil
}

// AddHolds registers, in place of the launcher webhook, the one that is for clusters with KubeVirt.
// It runs in every replica.
func AddHolds(mgr ctrl.Manager, cfg Config) error {
	mgr.GetWebhookServer().Register(LauncherPath, &webhook.Admission{Handler: &holds{cfg}})
	return nil
}
