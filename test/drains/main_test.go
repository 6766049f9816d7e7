//go:build !unit

// Package drains runs kubectl-vmdrain against a real API server. There is no
// kubelet and no controller manager: the tests end pods, attach volumes and move
// VMs as those would.
package drains

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

const soon = time.Minute

// shared is what all tests use. Each has a node and pods of its own.
var shared struct {
	api     *cluster.API
	binary  string
	audit   string // the API server's requests, a line each
	objects client.Client
}

// atEnd are called when all tests have ended.
var atEnd []func()

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "drains-")
	if err != nil {
		panic(err)
	}
	flags, audit, err := audited(dir)
	if err != nil {
		panic(err)
	}
	shared.audit = audit
	status := cluster.Main(func(a *cluster.API) int {
		shared.api = a
		if err := start(a); err != nil {
			fmt.Fprintln(os.Stderr, "NOT RUN:", err)
			return 1
		}
		defer func() {
			for _, f := range atEnd {
				f()
			}
		}()
		return m.Run()
	}, flags...)
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

func start(a *cluster.API) error {
	shared.binary = filepath.Join(a.Dir, "kubectl-vmdrain")
	if out, err := exec.Command("go", "build", "-race", "-o", shared.binary, "../../cmd/kubectl-vmdrain").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for _, args := range [][]string{
		{"apply", "-k", "../../deploy/crds"},
		{"wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "crd/virtualmachineinstancemigrations.kubevirt.io", "--timeout=30s"},
		{"create", "priorityclass", "important", "--value=10"},
	} {
		if _, err := a.TryKubectl(context.Background(), "", args...); err != nil {
			return err
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kubevirt.AddToScheme} {
		if err := add(known); err != nil {
			return err
		}
	}
	shared.objects, err = client.New(config, client.Options{Scheme: known})
	return err
}

// run is a kubectl-vmdrain that runs.
type run struct {
	*node.Process

	t *testing.T
}

func begin(t *testing.T, args ...string) *run {
	t.Helper()
	cmd := exec.Command(shared.binary, append([]string{"--kubeconfig=" + shared.api.Kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0 exitcode=66")
	p, err := node.StartProcess(cmd, filepath.Join(t.TempDir(), "log"))
	kit.Must(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("kubectl-vmdrain said:\n%s", p.Log())
		}
	})
	return &run{p, t}
}

// ends waits for its end, and expects that exit status.
func (r *run) ends(status int) {
	r.t.Helper()
	got, ended := r.Exited(soon)
	if !ended {
		r.t.Fatalf("it does not end; it said:\n%s", r.Log())
	}
	if got != status {
		r.t.Errorf("exit status %d, want %d", got, status)
	}
}

func (r *run) interrupt() { kit.Must(r.t, r.Signal(syscall.SIGINT)) }

func newNode(t *testing.T) string {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "n-"}}
	kit.Must(t, shared.objects.Create(t.Context(), n))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = shared.objects.Delete(ctx, n)
		_ = shared.objects.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("default"), client.MatchingLabels{"on": n.Name}, client.GracePeriodSeconds(0))
	})
	return n.Name
}

// newPod is a managed pod that runs on the node, unless change says otherwise.
func newPod(t *testing.T, node, name string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: node + "-" + name, Labels: map[string]string{"on": node, "app": node + "-" + name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs-" + name, UID: "rs", Controller: new(true)}}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}, TerminationGracePeriodSeconds: new(int64(30))},
	}
	if change != nil {
		change(p)
	}
	phase := p.Status.Phase
	kit.Must(t, shared.objects.Create(t.Context(), p))
	p.Status.Phase = corev1.PodRunning
	if phase != "" {
		p.Status.Phase = phase
	}
	// The budget asks whether it is ready.
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	kit.Must(t, shared.objects.Status().Update(t.Context(), p))
	return p
}

// terminating waits until somebody has evicted the pod.
func terminating(t *testing.T, p *corev1.Pod) {
	t.Helper()
	eventually(t, p.Name+" is evicted", func() bool { return isTerminating(t, p) })
}

func isTerminating(t *testing.T, p *corev1.Pod) bool {
	t.Helper()
	now := &corev1.Pod{}
	kit.Must(t, shared.objects.Get(t.Context(), client.ObjectKeyFromObject(p), now))
	return now.DeletionTimestamp != nil
}

// end takes a pod away, as its kubelet does.
func end(t *testing.T, p *corev1.Pod) {
	t.Helper()
	kit.Must(t, shared.objects.Delete(t.Context(), p.DeepCopy(), client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID}))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	node.Eventually(t, soon, ok, "%s", what)
}
