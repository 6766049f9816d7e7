//go:build !unit

// Package evictions tests cluster-controller, in one or two replicas, against a real API
// server. It applies the shipped manifests and uses only the rights that they grant. No
// kubelet and no controller manager runs here: test/e2e has the whole.
package evictions

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

const soon = 30 * time.Second

// shared holds what all tests use. A test restores what it breaks.
var shared struct {
	*rig.Rig

	front *front
	audit string // the audit log of cluster-controller's requests
}

func TestMain(m *testing.M) {
	const asked = `"omitStages":["RequestReceived","ResponseStarted"],
		"rules":[{"level":"Metadata","users":["system:serviceaccount:` + rig.Ours + `:cluster-controller"]},{"level":"None"}]`
	os.Exit(rig.Audited(asked, func(file string, flags ...string) int {
		shared.audit = file
		return cluster.Main(func(a *cluster.API) int { return rig.Main(m, a, start) }, flags...)
	}))
}

func start(a *cluster.API) (err error) {
	// The namespace is in deploy/daemonset.
	if shared.Rig, err = rig.Start(a, "cluster-controller", "apply -k ../../deploy/daemonset", "apply -k ../../deploy/controller"); err != nil {
		return err
	}
	shared.Never = append(shared.Never, "forbidden")
	if shared.front, err = listen(); err != nil {
		return err
	}
	return pointWebhooks(context.Background(), a)
}

// pointWebhooks applies the shipped webhook configurations with a URL in place of the
// Service, because nothing routes to a Service here.
func pointWebhooks(ctx context.Context, a *cluster.API) error {
	text, err := os.ReadFile("../../deploy/controller/webhooks.yaml")
	if err != nil {
		return err
	}
	service := regexp.MustCompile(`service: \{name: [^,]+, namespace: [^,]+,(?: path: ([^,]+),)? port: 443\}`)
	changed := service.ReplaceAllString(string(text), "url: https://localhost:"+shared.front.port()+"$1")
	if strings.Count(changed, "localhost") != 2 {
		return fmt.Errorf("webhooks.yaml is not as this test expects it:\n%s", changed)
	}
	if _, err := a.TryKubectl(ctx, "", "delete", "-f", "../../deploy/controller/webhooks.yaml"); err != nil {
		return err
	}
	_, err = a.TryKubectl(ctx, changed, "apply", "-f", "-")
	return err
}

// front plays the Service: it passes each connection to the next replica.
type front struct {
	net.Listener

	backends atomic.Pointer[[]string]
	turn     atomic.Int64
}

func listen() (*front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{Listener: l}
	f.backends.Store(&[]string{})
	go f.serve()
	return f, nil
}

func (f *front) port() string {
	_, port, _ := net.SplitHostPort(f.Addr().String())
	return port
}

func (f *front) serve() {
	for {
		c, err := f.Accept()
		if err != nil {
			return
		}
		go f.relay(c)
	}
}

func (f *front) relay(c net.Conn) {
	defer c.Close()
	all := *f.backends.Load()
	if len(all) == 0 {
		return
	}
	b, err := net.Dial("tcp", all[int(f.turn.Add(1))%len(all)])
	if err != nil {
		return
	}
	defer b.Close()
	go func() { _, _ = io.Copy(b, c); _ = b.Close() }()
	_, _ = io.Copy(c, b)
}

// replica is a running cluster-controller with the shipped rights.
type replica struct {
	*node.Process

	webhook, metrics, health string
}

// replicas starts n replicas and waits until they answer. They end with the test.
func replicas(t *testing.T, n int, args ...string) []*replica {
	t.Helper()
	return replicasVia(t, n, shared.ServiceAccount(t, rig.Ours, "cluster-controller").Kubeconfig, args...)
}

// replicasVia is replicas with another kubeconfig.
func replicasVia(t *testing.T, n int, kubeconfig string, args ...string) []*replica {
	t.Helper()
	var all []*replica
	var backends []string
	for ports := range slices.Chunk(rig.FreePorts(t, 3*n), 3) {
		r := &replica{webhook: ports[0], metrics: "127.0.0.1:" + ports[1], health: "127.0.0.1:" + ports[2]}
		r.Process = shared.Begin(t, append([]string{
			"--kubeconfig=" + kubeconfig, "--webhook-port=" + r.webhook,
			"--metrics-address=" + r.metrics, "--health-address=" + r.health, "--log-format=json", "-v",
			"--controllers=eviction-webhook,launcher-webhook", // the tests make the budgets themselves
		}, args...)...)
		all, backends = append(all, r), append(backends, "127.0.0.1:"+r.webhook)
	}
	shared.front.backends.Store(&backends)
	t.Cleanup(func() { shared.front.backends.Store(&[]string{}) })
	for _, r := range all {
		kit.Eventually(t, "a replica becomes ready", func() bool { return r.get("/readyz") == "ok" })
	}
	kit.Eventually(t, "the API server has the caBundle", func() bool {
		return shared.Kubectl(t, "get", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-o", "jsonpath={.items[*].webhooks[*].clientConfig.caBundle}") != ""
	})
	settled(t)
	return all
}
