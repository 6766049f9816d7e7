//go:build !unit

package cluster_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

// api is the rig that all tests share.
var api *rig.Rig

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(func(a *cluster.API) int { return rig.Main(m, a, start) }))
}

func start(a *cluster.API) (err error) {
	api, err = rig.Start(a, "cluster-controller", "apply -f ../../deploy/controller/evacuationpolicies.yaml", "create namespace "+rig.Ours)
	return err
}

// world is a namespace of the test's own.
type world struct {
	*testing.T
	rig.Space

	ns string
}

func given(t *testing.T) world {
	t.Helper()
	s := api.Namespace(t)
	t.Cleanup(func() { // other tests would see these
		_ = s.DeleteAllOf(rig.After(t), &v1alpha1.EvacuationPolicy{})
		_ = s.DeleteAllOf(rig.After(t), &corev1.Node{})
	})
	return world{t, s, s.NS}
}

func (w world) make(o client.Object) { w.Helper(); w.Make(o, "") }

func (w world) must(err error) { w.Helper(); kit.Must(w, err) }

// controller starts a cluster-controller with the rights of cluster-admin.
func (w world) controller(args ...string) *node.Process {
	w.Helper()
	return api.Begin(w, append([]string{"--kubeconfig=" + api.Kubeconfig, "--metrics-address=", "--health-address=", "-v",
		"--controllers=disruption-budgets,evacuation"}, args...)...)
}

func (w world) alone() *node.Process { w.Helper(); return w.controller("--leader-elect=false") }

func (w world) eventually(what string, holds func() bool) { w.Helper(); kit.Eventually(w, what, holds) }

// node makes a node that is Ready and has no taint. The API server taints a new node, and
// no controller that would remove the taint runs here.
func (w world) node(name string) {
	w.Helper()
	w.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, rig.NodeReady)
	w.taints(name)
}

func (w world) ready(name string, status corev1.ConditionStatus) {
	w.Helper()
	api.Kubectl(w, "patch", "node", name, "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"%s"}]}}`, status))
}

func (w world) taints(name string, keys ...string) { w.Helper(); w.Taint(name, keys...) }

// vm makes a VMI on a node with its launcher pod, both running.
func (w world) vm(name, node string, strategy kubevirt.EvictionStrategy, conditions string) *kubevirt.VirtualMachineInstance {
	w.Helper()
	return w.VM(name, node, strategy, fmt.Sprintf(`{"phase":"Running","nodeName":"%s","conditions":[%s]}`, node, conditions))
}

const migratable = `{"type":"LiveMigratable","status":"True","unknownField":"kept"}`

func (w world) launcher(v *kubevirt.VirtualMachineInstance, name, node string) {
	w.Helper()
	pod := w.Launcher(v, node)
	pod.Name = name
	w.Make(pod, rig.PodRuns)
}

func (w world) status(v *kubevirt.VirtualMachineInstance, status string) {
	w.Helper()
	w.SetStatus(v, status)
}

func (w world) mark(v *kubevirt.VirtualMachineInstance) {
	w.Helper()
	w.status(v, `{"evacuationNodeName":"`+v.Status.NodeName+`"}`)
}

func (w world) read(v *kubevirt.VirtualMachineInstance) *kubevirt.VirtualMachineInstance {
	w.Helper()
	return rig.Read[kubevirt.VirtualMachineInstance](w.Space, v.Name)
}

func (w world) migrations() []kubevirt.VirtualMachineInstanceMigration {
	w.Helper()
	return w.Migrations()
}

// event waits for an Event about an object whose text contains the words.
func (w world) event(about, reason, words string) {
	w.Helper()
	w.eventually("Event "+reason+" about "+about, func() bool {
		return strings.Contains(api.Kubectl(w, "get", "events", "-A", "-o",
			`jsonpath={range .items[*]}{.involvedObject.name} {.reason} {.message}{"\n"}{end}`,
			"--field-selector=reason="+reason+",involvedObject.name="+about), words)
	})
}
