//go:build !unit

// Package migrations runs cluster-controller against a real API server, with
// the manifests as shipped and the rights that those give. The agents are the
// tests themselves, which write what agents write, with a token of their node.
// There is no kubelet and no scheduler: tests play them. test/e2e has the whole.
package migrations

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

const ours = "vmgrace-system"

// shared is what all tests use.
var shared struct {
	api     *cluster.API
	binary  string
	config  *rest.Config
	objects client.Client
	core    *kubernetes.Clientset
	known   *runtime.Scheme
	agents  map[string]client.Client // by node, each with a token of its node
}

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(func(a *cluster.API) int {
		shared.api = a
		if err := start(a); err != nil {
			fmt.Fprintln(os.Stderr, "NOT RUN:", err)
			return 1
		}
		return m.Run()
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
	shared.known = runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kubevirt.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(shared.known); err != nil {
			return err
		}
	}
	if shared.core, err = kubernetes.NewForConfig(shared.config); err != nil {
		return err
	}
	ctx := context.Background()
	for _, args := range [][]string{
		{"apply", "-k", "../../deploy/crds"},
		{"apply", "-k", "../../deploy/daemonset"},
		{"apply", "-k", "../../deploy/controller"},
		{"delete", "-f", "../../deploy/controller/webhooks.yaml"}, // nobody routes to its Service here
		{"wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"},
	} {
		if _, err := a.TryKubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	if shared.objects, err = client.New(shared.config, client.Options{Scheme: shared.known}); err != nil {
		return err
	}
	shared.agents = map[string]client.Client{}
	for _, name := range []string{"node-a", "node-b", "node-c"} {
		if err := makeNode(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// makeNode makes a Node, and a client with a token that is bound to an agent's
// pod there: by that the API server knows the node.
func makeNode(ctx context.Context, name string) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	if err := shared.objects.Create(ctx, n); err != nil {
		return err
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := shared.objects.Status().Update(ctx, n); err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: "node-agent-" + name},
		Spec: corev1.PodSpec{NodeName: name, ServiceAccountName: "node-agent", Containers: []corev1.Container{{Name: "agent", Image: "x"}}}}
	if err := shared.objects.Create(ctx, pod); err != nil {
		return err
	}
	c, err := bound(ctx, "node-agent", pod)
	shared.agents[name] = c
	return err
}

// bound is a client with a token of a service account, bound to a pod if there
// is one.
func bound(ctx context.Context, account string, pod *corev1.Pod) (client.Client, error) {
	token := authenticationToken(pod)
	token, err := shared.core.CoreV1().ServiceAccounts(ours).CreateToken(ctx, account, token, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	cfg := rest.AnonymousClientConfig(shared.config)
	cfg.BearerToken, cfg.QPS = token.Status.Token, -1
	return client.New(cfg, client.Options{Scheme: shared.known})
}

// controller starts one cluster-controller with the shipped rights.
func controller(t *testing.T, args ...string) *node.Process {
	t.Helper()
	account := shared.api.ServiceAccount(t, ours, "cluster-controller")
	cmd := exec.Command(shared.binary, append([]string{
		"--kubeconfig=" + account.Kubeconfig, "--metrics-address=", "--health-address=", "--log-format=json", "-v",
		"--namespace=" + ours, "--controllers=disruption-budgets,evacuation,migration", "--leader-elect=false",
	}, args...)...)
	p, err := node.StartProcess(cmd, filepath.Join(t.TempDir(), fmt.Sprintf("controller-%d.log", time.Now().UnixNano())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		log := p.Log()
		if strings.Contains(log, "DATA RACE") || strings.Contains(log, "cannot ") && strings.Contains(log, "forbidden") || t.Failed() {
			t.Errorf("log of the controller:\n%s", log[max(0, len(log)-8000):])
		}
	})
	return p
}

func merge(text string, args ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, text, args...))
}
