//go:build !unit

// Package drains tests kubectl-vmdrain and kubectl-vmgrace against a real API server. No kubelet and no
// controller manager runs: the tests end pods, attach volumes and move VMs in their place.
package drains

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

const soon = time.Minute

// shared holds what all tests use. Each test has a node and pods of its own.
var shared struct {
	*rig.Rig

	vmgrace string // the path of kubectl-vmgrace
	audit   string // the audit log: the API server's requests, one a line
}

func TestMain(m *testing.M) {
	const all = `"omitStages":["ResponseStarted","ResponseComplete","Panic"],"rules":[{"level":"Metadata"}]`
	os.Exit(rig.Audited(all, func(file string, flags ...string) int {
		shared.audit = file
		return cluster.Main(func(a *cluster.API) int { return rig.Main(m, a, start) }, flags...)
	}))
}

func start(a *cluster.API) (err error) {
	if shared.Rig, err = rig.Start(a, "kubectl-vmdrain", "create priorityclass important --value=10"); err != nil {
		return err
	}
	shared.vmgrace = filepath.Join(a.Dir, "kubectl-vmgrace")
	if out, err := exec.Command("go", "build", "-race", "-o", shared.vmgrace, "../../cmd/kubectl-vmgrace").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// run is a running kubectl-vmdrain.
type run struct {
	*node.Process

	t *testing.T
}

func begin(t *testing.T, args ...string) *run {
	t.Helper()
	return &run{shared.Begin(t, append([]string{"--kubeconfig=" + shared.Kubeconfig}, args...)...), t}
}

// says waits until the program has written these words.
func (r *run) says(what string) {
	r.t.Helper()
	eventually(r.t, what, func() bool { return strings.Contains(r.Log(), what) })
}

// said asserts that the program has written all of these words.
func (r *run) said(all ...string) {
	r.t.Helper()
	for _, want := range all {
		if !strings.Contains(r.Log(), want) {
			r.t.Errorf("it does not say %q:\n%s", want, r.Log())
		}
	}
}

// ends waits for the program's end and asserts its exit status.
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

func newNode(t *testing.T) string {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "n-"}}
	shared.In(t, "").Make(n, "")
	pods := []client.DeleteAllOfOption{client.InNamespace("default"), client.MatchingLabels{"on": n.Name}, client.GracePeriodSeconds(0)}
	t.Cleanup(func() { _ = shared.DeleteAllOf(rig.After(t), &corev1.Pod{}, pods...) })
	return n.Name
}

// newPod makes a managed pod that runs on the node, unless change makes another one of it.
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
	phase := cmp.Or(p.Status.Phase, corev1.PodRunning)
	kit.Must(t, shared.Create(t.Context(), p))
	// A budget counts only pods that are ready.
	p.Status.Phase, p.Status.Conditions = phase, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	kit.Must(t, shared.Status().Update(t.Context(), p))
	return p
}

// terminating waits until the pod is evicted.
func terminating(t *testing.T, p *corev1.Pod) {
	t.Helper()
	eventually(t, p.Name+" is evicted", func() bool { return isTerminating(t, p) })
}

func isTerminating(t *testing.T, p *corev1.Pod) bool {
	t.Helper()
	return rig.Read[corev1.Pod](shared.In(t, p.Namespace), p.Name).DeletionTimestamp != nil
}

// end removes a pod, as its kubelet does.
func end(t *testing.T, p *corev1.Pod) {
	t.Helper()
	kit.Must(t, shared.Delete(t.Context(), p.DeepCopy(), client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID}))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	node.Eventually(t, soon, ok, "%s", what)
}
