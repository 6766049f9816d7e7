package crash

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// deletion is the path from the deletion of a VMI to the end of its VM.
func deletion() path {
	return path{
		name: "deleted", spec: node.Spec{Firmware: true}, round: 7, outcomes: []string{"Forced"}, cause: "VMIDeleted",
		notice: 5 * time.Second, // a new agent first connects, lists and asks
		points: slices.Concat(
			call("hint-cluster", "confirm"), []string{"put-begun.create", "put-begun.rename", "put-begun.done"},
			call("report-ShutdownStarted", "ask", "SIGTERM", "status-Stopped", "report-ShutdownForced", "flush-events"),
			[]string{"delete.unlink", "delete.done"}),
	}
}

func TestAnAgentKilledInADeletionKeepsTheGracePeriod(t *testing.T) {
	n, m, api := node.New(t), newMatrix(t), clusterOfVMs(t)
	d := deletion()
	var all []*crash
	m.walk(t, d, func(t *testing.T, point string) *crash {
		t.Helper()
		all = append(all, m.prepareDeleted(t, n, api, d, point))
		return all[len(all)-1]
	}, func(c *crash) { c.delete(api) })
	m.complete(t)
	for _, c := range all {
		c.checkEvents(t, api, "ShutdownForced 1", "ShutdownStarted 1")
	}
}

// clusterOfVMs returns an API server that has the CRD of VMIs.
func clusterOfVMs(t *testing.T) *cluster.API {
	t.Helper()
	api := cluster.NewAPI(t)
	api.Kubectl(t, "apply", "-k", "../../../deploy/crds")
	api.Kubectl(t, "wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "--timeout=20s")
	return api
}

// checkEvents checks that the VMI has exactly these Events, each as its reason and count.
func (c *crash) checkEvents(t *testing.T, api *cluster.API, want ...string) {
	t.Helper()
	told := api.Kubectl(t, "get", "events", "--field-selector", "involvedObject.uid="+c.UID, "-o", `jsonpath={range .items[*]}{.reason} {.count};{end}`)
	events := strings.Split(strings.TrimSuffix(told, ";"), ";")
	if slices.Sort(events); !slices.Equal(events, want) {
		t.Errorf("killed at %s: the VMI has Events %q", c.point, events)
	}
}

// prepareDeleted makes a VMI with its guest and its launcher pod on a Kubernetes node of
// its own.
func (m *matrix) prepareDeleted(t *testing.T, n *node.Node, api *cluster.API, p path, point string) *crash {
	t.Helper()
	host := node.Spec{}.Complete().Name // a unique name
	c := m.crash(t, n, p, n.ClusterAgent(t, api.Kubeconfig, host, "--shutdown-retry-interval=1s"), point)
	c.name = host
	c.arm(c.armed())
	api.KubectlApply(t, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %[1]s, namespace: default, labels: {kubevirt.io/nodeName: %[1]s}}
spec: {terminationGracePeriodSeconds: %[2]d}
`, c.name, int(crashGrace/time.Second)))
	uid := api.Kubectl(t, "get", "vmi", c.name, "-o", "jsonpath={.metadata.uid}")
	api.KubectlApply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: launcher-%[1]s
  labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: %[2]q}
  annotations: {kubevirt.io/domain: %[1]s}
spec: {nodeName: %[1]s, terminationGracePeriodSeconds: 600, containers: [{name: launcher, image: none}]}
`, c.name, uid))
	pod := api.Kubectl(t, "get", "pod", "launcher-"+c.name, "-o", "jsonpath={.metadata.uid}")
	c.agent.Start(t)
	spec := p.spec
	spec.Namespace, spec.Name = "default", c.name
	g := n.Boot(t, spec)
	g.UID = uid
	l := c.agent.PodLauncher(t, "default", c.name, uid, pod)
	c.VM = &node.VM{Guest: g, Agent: c.agent, Launcher: l, Shim: l.Shim(t, fmt.Sprintf("--pid=%d", g.PID))}
	waitGuarded(t, c.VM)
	return c
}

// armed is the path of the file that arms the points: a pass counts once the file exists.
func (c *crash) armed() string { return c.log + ".armed" }

func (c *crash) delete(api *cluster.API) {
	if err := os.WriteFile(c.armed(), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.from = time.Now()
	api.Kubectl(c.t, "delete", "vmi", c.name, "--wait=false")
	c.to = time.Now()
}
