package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// A frozen server accepts connections and answers nothing. These timeouts
// detect one within 20 s: silence, a ping without an answer, a new connection
// without a handshake, a request without a response.
const (
	silenceTimeout = 10 * time.Second
	pingTimeout    = 5 * time.Second
	dialTimeout    = 5 * time.Second
	answerTimeout  = 20 * time.Second
)

// SilenceLibraries keeps the client libraries from writing to stderr. This
// package itself logs what matters to the agent's log. The setting is
// process-wide and races with running clients: call it once, before all of
// them.
func SilenceLibraries() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

// newClient makes a REST client for all groups.
func newClient(kubeconfig string) (*rest.RESTClient, error) {
	cfg, err := load(kubeconfig)
	if err != nil {
		return nil, err
	}
	// No client-side limit: it would only add waiting to the server's own
	// priority and fairness.
	cfg.QPS = -1
	cfg.UserAgent = "vmgrace-node-agent"
	scheme := runtime.NewScheme()
	for _, r := range []resource{vmis(), migrations(), pods(), crds()} { // the watched kinds
		metav1.AddToGroupVersion(scheme, r.version())
		scheme.AddKnownTypeWithName(r.version().WithKind(r.kind), &object{})
	}
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	httpClient, err := newHTTPClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	c, err := rest.UnversionedRESTClientForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	return c, nil
}

func load(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("not in a pod with a service account: %w; name a --kubeconfig, or use --standalone", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return cfg, nil
}

// newHTTPClient configures the transport itself: the library's takes 45 s to
// notice a silent server, and only an environment variable changes that.
func newHTTPClient(cfg *rest.Config) (*http.Client, error) {
	first, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: silenceTimeout}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSClientConfig:       first, // used only through a proxy
		TLSHandshakeTimeout:   dialTimeout,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: silenceTimeout, PingTimeout: pingTimeout, WriteByteTimeout: silenceTimeout},
		ResponseHeaderTimeout: answerTimeout,
		IdleConnTimeout:       90 * time.Second,
	}
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialTLS(ctx, cfg, dialer, network, address)
	}
	if cfg.Proxy != nil {
		transport.Proxy = cfg.Proxy
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, transport)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: wrapped}, nil
}

// dialTLS reads the certificate files anew for each connection, so that rotated
// certificates take effect.
func dialTLS(ctx context.Context, cfg *rest.Config, dialer *net.Dialer, network, address string) (net.Conn, error) {
	own, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	if own == nil {
		own = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if len(own.NextProtos) == 0 {
		own.NextProtos = []string{"h2", "http/1.1"}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return (&tls.Dialer{NetDialer: dialer, Config: own}).DialContext(ctx, network, address)
}

// answer is the server's raw response. The library would turn a proxy's error
// page into a Status that names the object.
type answer struct {
	code int
	body []byte
}

// ask sends one request. An error status is an answer, not an error.
func ask(ctx context.Context, r *rest.Request) (answer, error) {
	result := r.MaxRetries(0).Do(ctx)
	var a answer
	result.StatusCode(&a.code)
	var err error
	if a.body, err = result.Raw(); a.code == 0 {
		return answer{}, fmt.Errorf("no answer: %w", err)
	}
	return a, nil
}

// expect fails for an answer of another status.
func (a answer) expect(code int) error {
	if a.code != code {
		return fmt.Errorf("the API server answers %d: %.200s", a.code, a.body)
	}
	return nil
}
