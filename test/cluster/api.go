package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// API is an etcd and a kube-apiserver. Its embedded Client is cluster-admin. One goroutine
// at a time may call its methods.
//
// Alone it has no controllers. So nothing makes default ServiceAccounts (pods do without
// one), collects garbage or ends the deletion of a namespace.
type API struct {
	Client
	// URL is that of the server, from this machine.
	URL string
	// Dir has its files, logs among them: apiserver.log, etcd.log.
	Dir string

	home      *home
	pki       *pki
	identity  *tls.Config // that of cluster-admin
	probe     *http.Client
	keeper    *keeper
	etcd      *node.Process
	apiserver *node.Process
	command   []string // of kube-apiserver
}

// NewAPI is StartAPI for one test. The API ends with the test.
func NewAPI(t T, flags ...string) *API {
	t.Helper()
	a, err := StartAPI(t.Context(), flags...)
	if err != nil {
		t.Fatalf("API server: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-apiserver said:\n%s", tail(a.Log()))
		}
		if err := a.Close(); err != nil {
			t.Fatalf("%v", err)
		}
	})
	return a
}

// StartAPI starts etcd and kube-apiserver on free ports of 127.0.0.1 and waits until the
// server is ready. flags are further flags of kube-apiserver. The caller must call Close.
func StartAPI(ctx context.Context, flags ...string) (*API, error) {
	// Another process may take a free port before it is used. Then the next try uses
	// others.
	for tries := 1; ; tries++ {
		a, err := startAPI(ctx, flags)
		if err == nil || tries == maxTries || ctx.Err() != nil {
			return a, err
		}
	}
}

const maxTries = 3

func startAPI(ctx context.Context, flags []string) (*API, error) {
	h, err := newHome()
	if err != nil {
		return nil, err
	}
	port, err := node.FreePort()
	if err != nil {
		return nil, errors.Join(err, h.remove())
	}
	a := &API{home: h, Dir: h.dir, URL: "https://127.0.0.1:" + strconv.Itoa(port)}
	if a.keeper, err = startKeeper(ctx, h.path("keeper.log"), "sh", "-c", killGroup); err == nil {
		err = a.start(ctx, endpoint{address: "127.0.0.1", port: port,
			// No controller makes ServiceAccounts, so the server must not require them.
			args: append([]string{"--disable-admission-plugins=ServiceAccount"}, flags...)})
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// endpoint is where kube-apiserver listens.
type endpoint struct {
	enter   []string // the command that enters its network namespace, nil if it has none
	address string
	port    int
	names   []string // other names and addresses that clients use
	args    []string // further flags
}

func (a *API) start(ctx context.Context, at endpoint) error {
	var err error
	if a.pki, err = newPKI(a.home); err != nil {
		return err
	}
	if a.kubectl, err = program("kubectl"); err != nil {
		return err
	}
	a.dir = a.Dir
	if a.Kubeconfig, err = a.pki.kubeconfig("admin", a.URL, admin()); err != nil {
		return err
	}
	if err := a.makeProbe(); err != nil {
		return err
	}
	etcdURL, err := a.startEtcd(at.enter)
	if err != nil {
		return err
	}
	if a.command, err = a.apiserverCommand(at, etcdURL); err != nil {
		return err
	}
	return a.Start(ctx)
}

func admin() pkix.Name {
	return pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}
}

func (a *API) makeProbe() error {
	id, err := a.pki.issue("probe", admin())
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(id.cert, id.key)
	if err != nil {
		return fmt.Errorf("probe's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.pki.cert)
	a.identity = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	// A connection that stays open would leave a goroutine behind.
	a.probe = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: a.identity.Clone()}}
	return nil
}

// HTTP returns a client as cluster-admin, for more requests than kubectl can make. The
// caller closes its idle connections.
func (a *API) HTTP() *http.Client {
	return &http.Client{Timeout: waitTimeout, Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: a.identity.Clone()}}
}

func (a *API) startEtcd(enter []string) (url string, err error) {
	etcd, err := program("etcd")
	if err != nil {
		return "", err
	}
	var urls [2]string
	for i := range urls {
		port, err := node.FreePort()
		if err != nil {
			return "", err
		}
		urls[i] = "http://127.0.0.1:" + strconv.Itoa(port)
	}
	client, peer := urls[0], urls[1]
	command := append(slices.Clip(enter), etcd, "--name=test", "--data-dir="+a.home.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	a.etcd, err = a.keeper.start(a.home.path("etcd.log"), command...)
	return client, err
}

func (a *API) apiserverCommand(at endpoint, etcdURL string) ([]string, error) {
	server, err := program("kube-apiserver")
	if err != nil {
		return nil, err
	}
	names := append([]string{"127.0.0.1", "localhost", "10.96.0.1", "kubernetes.default.svc"}, at.names...)
	serving, err := a.pki.issue("apiserver", pkix.Name{CommonName: "kube-apiserver"}, names...)
	if err != nil {
		return nil, err
	}
	kubelet, err := a.pki.issue("apiserver-kubelet-client", pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}})
	if err != nil {
		return nil, err
	}
	command := append(slices.Clip(at.enter), server,
		"--etcd-servers="+etcdURL, "--bind-address="+at.address, "--secure-port="+strconv.Itoa(at.port),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement", "--allow-privileged=true",
		"--client-ca-file="+a.pki.ca(), "--tls-cert-file="+serving.certFile, "--tls-private-key-file="+serving.keyFile,
		"--kubelet-client-certificate="+kubelet.certFile, "--kubelet-client-key="+kubelet.keyFile,
		"--kubelet-preferred-address-types=InternalIP", "--profiling=false",
		// Without this flag the server waits a minute after SIGTERM for watches, which do
		// not end.
		"--shutdown-watch-termination-grace-period=1s",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+a.pki.saKey(), "--service-account-signing-key-file="+a.pki.saKey())
	return append(command, at.args...), nil
}

// Start starts a stopped or killed server on the same data and port and waits until it is
// ready.
func (a *API) Start(ctx context.Context) error {
	var err error
	if a.apiserver, err = a.keeper.start(a.home.path("apiserver.log"), a.command...); err != nil {
		return err
	}
	up := func() bool { return a.Ready(ctx) || !a.apiserver.Running() || !a.etcd.Running() }
	if !node.Poll(ctx, waitTimeout, up) || !a.Ready(ctx) {
		return fmt.Errorf("kube-apiserver does not get ready: %s%s", tail(a.etcd.Log()), tail(a.apiserver.Log()))
	}
	return nil
}

// Ready reports whether the server says that it is ready.
func (a *API) Ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := a.probe.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}

// Stop stops the server with SIGTERM, as an upgrade does, and waits for its end. etcd
// stays. Where the server takes longer than 30 s, Stop kills it.
func (a *API) Stop() { stop(a.apiserver, 30*time.Second) }

// Kill kills the server: its connections break without a notice.
func (a *API) Kill() { a.apiserver.Kill() }

// Freeze stops the server with SIGSTOP: connections stay and get no answer.
func (a *API) Freeze() error { return freeze(a.apiserver) }

// Thaw ends a Freeze.
func (a *API) Thaw() error { return a.apiserver.Signal(unix.SIGCONT) }

// As returns a client with a certificate for that user.
func (a *API) As(t T, user string) Client {
	t.Helper()
	other, name := a.Client, "user-"+strings.NewReplacer(":", "-", "/", "-").Replace(user)
	var err error
	if other.Kubeconfig, err = a.pki.kubeconfig(name, a.URL, pkix.Name{CommonName: user}); err != nil {
		t.Fatalf("%v", err)
	}
	return other
}

// Log returns what kube-apiserver has said.
func (a *API) Log() string { return readText(a.home.path("apiserver.log")) }

// Close kills everything and removes Dir.
func (a *API) Close() error {
	a.keeper.close()
	for _, p := range []*node.Process{a.etcd, a.apiserver} {
		if p != nil {
			p.Exited(waitTimeout) // the keeper has killed it, this reaps it
		}
	}
	if err := a.home.remove(); err != nil {
		return fmt.Errorf("API server's leftovers: %w", err)
	}
	return nil
}

// Main runs the tests with an API server that they share and returns the exit status. A
// TestMain calls it.
func Main(run func(*API) int, flags ...string) int {
	a, err := StartAPI(context.Background(), flags...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "API server:", err)
		return 1
	}
	status := run(a)
	if err := a.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

// tail returns the end of a log, for a message.
func tail(log string) string {
	return log[max(0, len(log)-4000):]
}
