package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check is a health check; it must not block.
type Check func() bool

// Serve answers /metrics, /livez and /readyz on a listener from Listen, until ctx ends. A
// slow or silent client delays nobody else.
func (m *Metrics) Serve(ctx context.Context, l net.Listener, live, ready Check) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /livez", health("stuck: a VM's keeper does not take its hints; restart the agent", live))
	mux.HandleFunc("GET /readyz", health("not ready: the cache is not loaded, a record cannot be written, a watch is not armed, or libvirt was not tried yet", ready))
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// Listen opens the address, so that a wrong one is an error at the start.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics-address %s: %w; choose another or \"\" for none", address, err)
	}
	return l, nil
}

func health(problem string, ok Check) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if !ok() {
			http.Error(w, problem, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
