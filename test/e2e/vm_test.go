package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// world is the cluster as one test uses it.
type world struct {
	*testing.T
	*suite
	since time.Time
	last  error // of the last node-agent status, for a failure message
}

// given waits until both agents are ready. If the test fails, it logs what they have said.
func given(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, suite: &shared, since: time.Now()}
	w.waitAgents()
	begin := w.since
	t.Cleanup(func() { w.said(begin) })
	return w
}

// said logs the agents' logs if the test has failed.
func (w *world) said(since time.Time) {
	if !w.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := w.TryKubectl(ctx, "", "logs", "-n", agents, "-l", "app.kubernetes.io/name=node-agent",
		"--prefix", "--tail=-1", "--since-time="+since.Format(time.RFC3339))
	w.Logf("the agents said (%v), and to the last node-agent status: %v\n%s", err, w.last, out)
}

// step logs what the test has just done and how long that took.
func (w *world) step(format string, args ...any) {
	w.Helper()
	w.Logf("%6.1f s  %s", time.Since(w.since).Seconds(), fmt.Sprintf(format, args...))
	w.since = time.Now()
}

func (w *world) waitAgents() {
	w.Helper()
	if err := w.agentsReady(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// plan describes a VM to create from deploy/examples.
type plan struct {
	node.Spec
	on       *cluster.Node // nil = the first node
	grace    int
	podGrace int    // 0 = grace + 30, as in the example
	cpu      string // the launcher's request; "" = the example's
	// orphan: the launcher pod has no owner, so it stays when its VMI is deleted.
	orphan bool
	// strategy is the VMI's evictionStrategy from its creation on.
	strategy string
	// finalizer: the VMI has KubeVirt's finalizer and stays until release removes it.
	finalizer bool
}

const finalizer = "foregroundDeleteVirtualMachine"

// release removes the finalizer, as KubeVirt does when nothing is left of a VM.
func (v *vm) release() { v.finalizers("null") }

func (v *vm) finalizers(list string) {
	v.w.Helper()
	v.w.Kubectl(v.w, "patch", "vmi", v.Name, "-n", namespace, "--type=merge", "-p", `{"metadata":{"finalizers":`+list+`}}`)
}

// vm is a guest with its VMI and its launcher pod.
type vm struct {
	*cluster.Guest
	w        *world
	uid, pod string // UIDs of the VMI and of the pod
	grace    int
}

// vms creates VMs and waits until the agents guard them.
func (w *world) vms(plans ...plan) []*vm {
	w.Helper()
	var all []*vm
	if slices.ContainsFunc(plans, func(p plan) bool { return p.cpu != "" }) {
		w.deletedPodsGone() // kubelet fails a pod for which the node has no room
	}
	for _, p := range plans {
		all = append(all, w.make(p))
	}
	for _, v := range all {
		v.WaitUp(w)
		v.waitGuarded()
	}
	w.step("%d VMs", len(all))
	return all
}

// deletedPodsGone waits until the pods that earlier tests deleted are gone.
func (w *world) deletedPodsGone() {
	w.Helper()
	node.Eventually(w, 2*soon, func() bool {
		return w.find(objects.Query{Kind: "pod", Namespace: namespace, Path: "{.items[?(@.metadata.deletionTimestamp)].metadata.name}"}) == ""
	}, "pods that a test before has deleted are still there")
}

func (w *world) vm(p plan) *vm {
	w.Helper()
	return w.vms(p)[0]
}

func (w *world) make(p plan) *vm {
	w.Helper()
	if p.on == nil {
		p.on = w.a
	}
	p.Namespace = namespace
	p.Spec = p.Complete()
	v := &vm{w: w, grace: p.grace}
	w.restore(func(ctx context.Context) error {
		_ = w.kubectl(ctx, "patch", "vmi", p.Name, "-n", namespace, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`) // it may be gone
		return nil
	})
	// This runs after the guest's own cleanup, which kills the guest.
	w.afterwards("delete", "-n", namespace, "vmi/"+p.Name, "pod/virt-launcher-"+p.Name, "--ignore-not-found", "--grace-period=2", "--wait=false")
	v.uid = w.vmi(p)
	w.KubectlApply(w, w.launcher(p, v.uid))
	v.pod = w.get("pod", "virt-launcher-"+p.Name, "{.metadata.uid}")
	v.Guest = p.on.Start(w, p.Spec)
	return v
}

// afterwards runs kubectl when the test ends.
func (w *world) afterwards(args ...string) {
	w.restore(func(ctx context.Context) error { return w.kubectl(ctx, args...) })
}

// restore calls do when the test ends. The test's own context has ended by then.
func (w *world) restore(do func(context.Context) error) {
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := do(ctx); err != nil {
			w.Errorf("afterwards: %v", err)
		}
	})
}

// onNode returns the namespace of the tests' VMIs and the label with a node, as lines of metadata.
func onNode(name string) string {
	return "namespace: " + namespace + "\n  labels: {kubevirt.io/nodeName: " + name + "}"
}

// vmi creates the VMI of a plan and returns its UID.
func (w *world) vmi(p plan) string {
	w.Helper()
	meta := onNode(p.on.Name)
	if p.finalizer {
		meta += "\n  finalizers: [" + finalizer + "]"
	}
	spec := fmt.Sprintf("terminationGracePeriodSeconds: %d", p.grace)
	if p.strategy != "" {
		spec += "\n  evictionStrategy: " + p.strategy
	}
	w.KubectlApply(w, w.example("vmi.yaml", "example", p.Name, "namespace: default", meta, "terminationGracePeriodSeconds: 20", spec))
	return w.get("vmi", p.Name, "{.metadata.uid}")
}

func (w *world) launcher(p plan, uid string) string {
	w.Helper()
	if p.podGrace == 0 {
		p.podGrace = p.grace + 30
	}
	if p.cpu == "" {
		p.cpu = "5m"
	}
	text := w.example("launcher.yaml",
		"example", p.Name, "namespace: default", "namespace: "+namespace, "nodeName: NODE", "nodeName: "+p.on.Name, "VMI_UID", uid,
		"terminationGracePeriodSeconds: 50", fmt.Sprintf("terminationGracePeriodSeconds: %d", p.podGrace), "cpu: 5m", "cpu: "+p.cpu)
	if p.orphan {
		text = regexp.MustCompile(`(?s)  ownerReferences:.*?\nspec:`).ReplaceAllString(text, "spec:")
	}
	return text
}

// example returns a file of deploy/examples. edits are pairs of old and new text.
func (w *world) example(file string, edits ...string) string {
	w.Helper()
	text, err := os.ReadFile("../../deploy/examples/" + file)
	if err != nil {
		w.Fatal(err)
	}
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(string(text), edits[i]) {
			w.Fatalf("%s has no %q any more", file, edits[i])
		}
	}
	return strings.NewReplacer(edits...).Replace(string(text))
}

// get reads from an object in the tests' namespace.
func (w *world) get(kind, name, path string) string {
	w.Helper()
	return w.objects.Read(w, objects.Query{Kind: kind, Namespace: namespace, Name: name, Path: path})
}

// find returns what a query finds, and "" if the object does not exist.
func (w *world) find(q objects.Query) string {
	w.Helper()
	out, err := w.objects.Find(w.Context(), q)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

func (w *world) delete(args ...string) {
	w.Helper()
	w.Kubectl(w, append([]string{"delete", "-n", namespace, "--wait=false"}, args...)...)
}

func (v *vm) launcherPod() string { return "pod/virt-launcher-" + v.Name }

func (v *vm) waitGuarded() {
	v.w.Helper()
	node.Eventually(v.w, 2*soon, func() bool {
		r, ok := v.record()
		return ok && r.UID == v.uid && r.GracePeriodSeconds == int64(v.grace) && v.launcherStatus().Phase == "Running" && v.registered()
	}, "%s on %s is not guarded", v.Domain, v.Node.Name)
}

// launcherFile is a file of a pod's launcher directory on its node.
const launcherFile = "/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/vmgrace/%s"

// registered reports whether the launcher runs. The kernel drops a SIGTERM that comes before, as
// its process has the pid 1 and does not catch it yet.
func (v *vm) registered() bool {
	_, err := v.Node.TryRun(v.w.Context(), nil, fmt.Sprintf("cat "+launcherFile, v.pod, "vm.json"))
	return err == nil
}

// launcherStatus returns the status.json in the pod's volume, and zero while there is none.
func (v *vm) launcherStatus() (s node.Status) {
	out, err := v.Node.TryRun(v.w.Context(), nil, fmt.Sprintf("cat "+launcherFile, v.pod, "status.json"))
	if err == nil && json.Unmarshal([]byte(out), &s) != nil {
		v.w.Errorf("status.json of %s: %q", v.Domain, out)
	}
	return s
}

// agent returns the name of the agent's pod on a node, and "" while none runs.
func (w *world) agent(n *cluster.Node) string {
	w.Helper()
	return w.find(objects.Query{Kind: "pod", Namespace: agents, Labels: "app.kubernetes.io/name=node-agent",
		Fields: "status.phase=Running,spec.nodeName=" + n.Name, Path: "{.items[*].metadata.name}"})
}

// records returns what node-agent status says on a node. ok is false while no agent
// answers.
func (w *world) records(n *cluster.Node) (records []node.VMStatus, ok bool) {
	w.Helper()
	// This does what kubectl exec does, at a tenth of its cost. It fails while two agents
	// run: one of them is ending.
	const status = `pid=$(pgrep -x node-agent) && chroot /proc/$pid/root /usr/bin/node-agent status -o json`
	out, err := n.TryRun(w.Context(), nil, status)
	if w.last = err; err != nil {
		return nil, false
	}
	if err := json.Unmarshal([]byte(out), &records); err != nil {
		w.Fatalf("node-agent status on %s: %v: %s", n.Name, err, out)
	}
	return records, true
}

// record returns the VM's record on its node. ok is false while it cannot be read.
func (v *vm) record() (r node.VMStatus, ok bool) {
	v.w.Helper()
	records, ok := v.w.records(v.Node)
	i := slices.IndexFunc(records, func(r node.VMStatus) bool { return r.Domain == v.Domain })
	if !ok || i < 0 {
		return r, false
	}
	return records[i], true
}

// forgottenBy waits until a node's agent has no record of the VM.
func (v *vm) forgottenBy(n *cluster.Node) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool {
		records, ok := v.w.records(n)
		return ok && !slices.ContainsFunc(records, func(r node.VMStatus) bool { return r.Domain == v.Domain })
	}, "the record of %s on %s is still there", v.Domain, n.Name)
}

// metric returns a sample of a metric of a node's agent as text, and "" while there is
// none.
func (w *world) metric(n *cluster.Node, name string) string {
	// This does not need the API server, which a test may have stopped.
	const scrape = `timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9469; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; cat <&3' 2>/dev/null | sed -n 's/^%s //p'`
	out, err := n.TryRun(w.Context(), nil, fmt.Sprintf(scrape, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// waitWatch waits until the nodes' agents report by their metric that their watch of the
// VMIs is up ("1") or not ("0").
func (w *world) waitWatch(up string, nodes ...*cluster.Node) {
	w.Helper()
	for _, n := range nodes {
		node.Eventually(w, 2*soon, func() bool { return w.metric(n, "vmgrace_vmi_watch_up") == up },
			"vmgrace_vmi_watch_up on %s does not become %s", n.Name, up)
	}
}
