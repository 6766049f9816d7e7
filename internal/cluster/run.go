package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/eviction"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/webhookcerts"
)

const (
	userAgent = index.Manager
	// shutdownTimeout is the time after --shutdown-delay for answers under way.
	shutdownTimeout = 9 * time.Second
	// off is the address that keeps controller-runtime from listening.
	off = "0"
)

// Run runs the webhooks and controllers until ctx ends. It returns an error if they
// cannot be started or the lease is lost.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	bridge := logr.FromSlogHandler(quiet{log.Handler()})
	ctrllog.SetLogger(bridge)
	klog.SetLogger(bridge)
	mgr, keeper, err := o.manager(bridge)
	if err != nil {
		return err
	}
	if err := o.checkCRDs(ctx, mgr.GetAPIReader()); err != nil {
		return err
	}
	s := setup{Manager: mgr, log: log, live: mgr.GetAPIReader(), keeper: keeper, meter: metrics.New(registry.Registry), budgets: o.runs(disruptionBudgets)}
	if err := errors.Join(o.register(&s), mgr.Add(newMemory())); err != nil {
		return err
	}
	log.Info("cluster-controller starts", "controllers", o.Controllers, "besideKubeVirt", o.BesideKubeVirt, "namespace", o.Namespace)
	ctx, stop := delayed(ctx, o.ShutdownDelay)
	defer stop()
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("cluster-controller: %w", err)
	}
	return nil
}

// delayed returns a context that ends delay after ctx.
func delayed(ctx context.Context, delay time.Duration) (context.Context, context.CancelFunc) {
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		select {
		case <-time.After(delay):
			cancel()
		case <-after.Done():
		}
	})
	return after, cancel
}

func (o *Options) config() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("API server: %w; name a --kubeconfig", err)
	}
	cfg.UserAgent = userAgent
	cfg.QPS = -1 // no client-side limit: the API server has priority and fairness
	return cfg, nil
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kubevirt.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (o *Options) manager(log logr.Logger) (ctrl.Manager, *webhookcerts.Keeper, error) {
	cfg, err := o.config()
	if err != nil {
		return nil, nil, err
	}
	known, err := newScheme()
	if err != nil {
		return nil, nil, err
	}
	lock, err := newLock(cfg, o.Namespace)
	if err != nil {
		return nil, nil, err
	}
	keeper := webhookcerts.New(webhookcerts.Config{Namespace: o.Namespace, Validity: o.CertificateValidity, Guarded: eviction.EvictionPath})
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: known, Logger: log, Cache: o.cacheOptions(),
		Client:         client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Event{}}}},
		LeaderElection: o.LeaderElect, LeaderElectionResourceLockInterface: &lease{Interface: lock},
		// The process ends with the manager: nothing runs on without the lease.
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 new(leaseDuration), RenewDeadline: new(renewDeadline), RetryPeriod: new(retryPeriod),
		Metrics:                server.Options{BindAddress: cmp.Or(o.MetricsAddress, off)},
		HealthProbeBindAddress: cmp.Or(o.HealthAddress, off),
		LivenessEndpointName:   "/livez", ReadinessEndpointName: "/readyz",
		WebhookServer: webhook.NewServer(webhook.Options{Port: o.WebhookPort, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion, c.GetCertificate = tls.VersionTLS12, keeper.Certificate
		}}}),
		GracefulShutdownTimeout: new(shutdownTimeout),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	lock.LockConfig.EventRecorder = mgr.GetEventRecorderFor(userAgent) //nolint:staticcheck // the lock takes no other
	return mgr, keeper, nil
}
