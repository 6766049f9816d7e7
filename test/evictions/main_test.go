//go:build !unit

// Package evictions runs two replicas of cluster-controller against a real API
// server, with the manifests as shipped and the rights that those give. There
// is no kubelet and no controller manager: test/e2e has the whole.
package evictions

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

const (
	ours = "vmgrace-system"
	soon = 30 * time.Second
)

// shared is what all tests use. They restore what they break.
var shared struct {
	api     *cluster.API
	binary  string
	config  *rest.Config
	objects client.Client
	core    *kubernetes.Clientset
	front   *front
	audit   string // the API server's log of what cluster-controller asks
}

func TestMain(m *testing.M) {
	os.Exit(withAudit(func(flags ...string) int {
		return cluster.Main(func(a *cluster.API) int {
			shared.api = a
			if err := start(a); err != nil {
				fmt.Fprintln(os.Stderr, "NOT RUN:", err)
				return 1
			}
			return m.Run()
		}, flags...)
	}))
}

func start(a *cluster.API) (err error) {
	shared.binary = filepath.Join(a.Dir, "cluster-controller")
	if out, err := exec.Command("go", "build", "-race", "-o", shared.binary, "../../cmd/cluster-controller").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if shared.config, err = clientcmd.BuildConfigFromFlags("", a.Kubeconfig); err != nil {
		return err
	}
	shared.config.QPS = -1
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kubevirt.AddToScheme} {
		if err := add(known); err != nil {
			return err
		}
	}
	if shared.core, err = kubernetes.NewForConfig(shared.config); err != nil {
		return err
	}
	ctx := context.Background()
	for _, args := range [][]string{
		{"apply", "-k", "../../deploy/crds"},
		{"apply", "-k", "../../deploy/daemonset"}, // has the namespace
		{"apply", "-k", "../../deploy/controller"},
		{"wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "crd/evacuationpolicies.vmgrace.io", "--timeout=30s"},
	} {
		if _, err := a.TryKubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	if shared.objects, err = client.New(shared.config, client.Options{Scheme: known}); err != nil {
		return err
	}
	if shared.front, err = listen(); err != nil {
		return err
	}
	return pointWebhooks(ctx, a)
}

// pointWebhooks applies the shipped configurations with an address in place of
// the Service, which nobody routes to here.
func pointWebhooks(ctx context.Context, a *cluster.API) error {
	text, err := os.ReadFile("../../deploy/controller/webhooks.yaml")
	if err != nil {
		return err
	}
	service := regexp.MustCompile(`service: \{.*path: ([^,]+),.*\}`)
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

// front is the Service: each connection goes to the next replica.
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

// replica is a running cluster-controller, with the shipped rights.
type replica struct {
	*node.Process

	webhook, metrics, health string
}

// replicas starts n of them and waits until they answer. They end with the test.
func replicas(t *testing.T, n int, args ...string) []*replica {
	t.Helper()
	return replicasVia(t, n, shared.api.ServiceAccount(t, ours, "cluster-controller").Kubeconfig, args...)
}

// replicasVia is replicas that find the API server as that file says.
func replicasVia(t *testing.T, n int, kubeconfig string, args ...string) []*replica {
	t.Helper()
	var all []*replica
	var backends []string
	for i := range n {
		r := &replica{webhook: freePort(t), metrics: "127.0.0.1:" + freePort(t), health: "127.0.0.1:" + freePort(t)}
		cmd := exec.Command(shared.binary, append([]string{
			"--kubeconfig=" + kubeconfig, "--webhook-port=" + r.webhook,
			"--metrics-address=" + r.metrics, "--health-address=" + r.health, "--log-format=json", "-v",
			"--controllers=eviction-webhook,launcher-webhook", // budgets are the tests' own
		}, args...)...)
		p, err := node.StartProcess(cmd, filepath.Join(t.TempDir(), fmt.Sprintf("replica-%d.log", i)))
		if err != nil {
			t.Fatal(err)
		}
		r.Process = p
		t.Cleanup(func() {
			p.Kill()
			log := p.Log()
			if strings.Contains(log, "DATA RACE") || strings.Contains(log, "forbidden") || t.Failed() {
				t.Errorf("log of a replica:\n%s", log[max(0, len(log)-6000):])
			}
		})
		all, backends = append(all, r), append(backends, "127.0.0.1:"+r.webhook)
	}
	shared.front.backends.Store(&backends)
	t.Cleanup(func() { shared.front.backends.Store(&[]string{}) })
	for _, r := range all {
		kit.Eventually(t, "a replica becomes ready", func() bool { return r.get("/readyz") == "ok" })
	}
	kit.Eventually(t, "the API server has the caBundle", func() bool {
		return shared.api.Kubectl(t, "get", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-o", "jsonpath={.items[*].webhooks[*].clientConfig.caBundle}") != ""
	})
	settled(t)
	return all
}

func freePort(t *testing.T) string {
	t.Helper()
	p, err := node.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(p)
}
