// Package kubernetes runs the agent against a real API server and real guests. There is no
// kubelet: the tests do what kubelet does. test/e2e runs whole clusters.
package kubernetes

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

var (
	machine *node.Node
	// api is the API server of all tests that do not harm it.
	api *cluster.API
)

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(n *node.Node) int {
		machine = n
		return cluster.Main(func(a *cluster.API) int { api = a; return m.Run() })
	}))
}

const (
	here = "node-a"
	soon = 20 * time.Second
	ms   = time.Millisecond
)

// world is an agent with its API server.
type world struct {
	*testing.T
	api     *cluster.API
	agent   *node.Agent // nil if there is none yet
	objects *objects.Reader
}

func newWorld(t *testing.T, a *cluster.API, agent *node.Agent) world {
	t.Helper()
	reader, err := objects.New(a.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return world{t, a, agent, reader}
}

// given starts an agent whose API server has the CRDs.
func given(t *testing.T, a *cluster.API, args ...string) world {
	t.Helper()
	w := newWorld(t, a, machine.ClusterAgent(t, a.Kubeconfig, here, args...))
	w.installCRDs()
	w.agent.Start(t)
	return w
}

func (w world) installCRDs() {
	w.Helper()
	w.api.Kubectl(w, "apply", "-k", "../../deploy/crds")
	w.api.Kubectl(w, "wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "--timeout=20s")
}

// vm is a VMI with its guest, its launcher pod and that pod's shim.
type vm struct {
	*node.VM
	w world
}

// vmi makes a VMI of this node and returns its UID.
func (w world) vmi(name, spec string) string {
	w.Helper()
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: %s
  namespace: default
  labels: {kubevirt.io/nodeName: %s}
spec: {%s}
`, name, here, spec))
	return w.get("vmi", name, "{.metadata.uid}")
}

func (w world) get(kind, name, path string) string {
	w.Helper()
	return w.objects.Read(w, objects.Query{Kind: kind, Namespace: "default", Name: name, Path: path})
}

// launcher is what one launcher pod has in addition to what all launcher pods have.
type launcher struct{ annotation, priorityClass string }

// launcherPod makes a launcher pod that is bound to this node, and returns its UID. No
// kubelet runs it.
func (w world) launcherPod(name, uid string, l launcher) string {
	w.Helper()
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: launcher-%[1]s
  labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: %[2]q}
  annotations: {kubevirt.io/domain: %[1]s, %[4]s}
spec:
  nodeName: %[3]s
  priorityClassName: %[5]q
  terminationGracePeriodSeconds: 600
  containers: [{name: launcher, image: none}]
`, name, uid, here, l.annotation, l.priorityClass))
	return w.get("pod", "launcher-"+name, "{.metadata.uid}")
}

// guarded makes a VM with everything that belongs to it, and waits until the agent guards
// it. spec is the VMI's.
func (w world) guarded(s node.Spec, spec string) vm {
	w.Helper()
	return w.guardedBy(launcher{}, s, spec)
}

func (w world) guardedBy(of launcher, s node.Spec, spec string) vm {
	w.Helper()
	s.Namespace = "default"
	g := machine.Boot(w, s)
	uid := w.vmi(g.Name, spec)
	pod := w.launcherPod(g.Name, uid, of)
	l := w.agent.PodLauncher(w, "default", g.Name, uid, pod)
	v := vm{&node.VM{Guest: g, Agent: w.agent, Launcher: l, Shim: l.Shim(w, "--pid-file="+l.Path("vm.pid"))}, w}
	v.UID = uid
	v.WaitGuarded(w)
	return v
}

// inPod is guarded for a VM whose QEMU is in the launcher pod, that is, in the cgroup of
// this pod.
func (w world) inPod(s node.Spec, spec string) vm {
	w.Helper()
	s.Namespace = "default"
	s = s.Complete()
	uid := w.vmi(s.Name, spec)
	pod := w.launcherPod(s.Name, uid, launcher{})
	v := vm{w.agent.LaunchInPod(w, s, w.agent.PodLauncher(w, "default", s.Name, uid, pod), pod), w}
	v.WaitUp(w)
	v.WaitGuarded(w)
	return v
}

// record returns what node-agent status says about the VM, and whether it has a record.
func (v vm) record() (node.VMStatus, bool) { return v.w.agent.StatusOf(v.w, v.Guest) }

func (v vm) waitGrace(seconds int) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool {
		s, ok := v.record()
		return ok && s.GracePeriodSeconds == int64(seconds)
	}, "the grace period of %s does not become %d s", v.Domain, seconds)
}

// untouched checks that the VM runs and no shutdown has begun.
func (v vm) untouched() {
	v.w.Helper()
	if s, ok := v.record(); v.Gone() || !ok || s.Phase != "Running" {
		v.w.Errorf("%s: gone %v, record %v %+v; want it untouched\n%s", v.Domain, v.Gone(), ok, s, v.w.agent.Log())
	}
}

// stopped waits for the end of the VM and of its record, and for exactly these Events on
// its VMI, each told once.
func (v vm) stopped(cause, outcome string, events ...string) {
	v.w.Helper()
	v.WaitStopped(v.w, cause, outcome)
	v.told(events...)
}

func (v vm) told(events ...string) {
	v.w.Helper()
	slices.Sort(events)
	node.Eventually(v.w, soon, func() bool { return slices.Equal(v.events(), events) }, "Events of %s: want %v", v.Domain, events)
}

// events returns the reasons of the VMI's Events. An Event that has another source, or was
// told more than once, has both in its reason.
func (v vm) events() []string {
	out := v.w.objects.Read(v.w, objects.Query{Kind: "event", Namespace: "default", Fields: "involvedObject.kind=VirtualMachineInstance,involvedObject.uid=" + v.UID,
		Path: `{range .items[*]}{.reason}/{.source.component}/{.count}{"\n"}{end}`})
	var reasons []string
	for _, line := range strings.Fields(out) {
		reason, rest, _ := strings.Cut(line, "/")
		if rest != "node-agent/1" {
			reason = line // this equals no expected reason
		}
		reasons = append(reasons, reason)
	}
	slices.Sort(reasons)
	return reasons
}

// watchUp returns the metric vmgrace_vmi_watch_up.
func (w world) watchUp() float64 { return w.agent.Metrics(w)["vmgrace_vmi_watch_up"] }

func (w world) waitWatch(up float64) {
	w.Helper()
	node.Eventually(w, time.Minute, func() bool { return w.watchUp() == up }, "vmgrace_vmi_watch_up does not become %v", up)
}
