package besidekubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// soon bounds waits without a promised time, on a busy machine.
const soon = 60 * time.Second

// world is the cluster as one test uses it.
type world struct {
	*testing.T
	*suite
	since time.Time
}

// given returns the cluster with vmgrace.
func given(t *testing.T) *world {
	t.Helper()
	if err := shared.install(); err != nil {
		t.Fatal(err)
	}
	return without(t)
}

// without returns the cluster as it is. If the test fails, it logs what vmgrace and the
// stand-in have said.
func without(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, suite: &shared, since: time.Now()}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, of := range []string{"-n " + theirs + " -l kubevirt.io", "-n " + ours + " -l app.kubernetes.io/part-of=vmgrace"} {
			out, err := w.TryKubectl(ctx, "", append([]string{"logs", "--prefix", "--tail=150"}, strings.Fields(of)...)...)
			t.Logf("%s (%v)\n%s", of, err, out)
		}
		for _, kind := range []string{"pods,vmi,vmim", "events"} {
			out, _ := w.TryKubectl(ctx, "", "get", kind, "-n", namespace, "-o", "wide") // only for the message
			t.Log(out)
		}
	})
	return w
}

// step logs what the test has just done and how long that took.
func (w *world) step(format string, args ...any) {
	w.Helper()
	w.Logf("%6.1f s  %s", time.Since(w.since).Seconds(), fmt.Sprintf(format, args...))
	w.since = time.Now()
}

// afterwards runs kubectl when the test ends.
func (w *world) afterwards(args ...string) {
	w.restore(func(ctx context.Context) error {
		_, err := w.TryKubectl(ctx, "", args...)
		return err
	})
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

// find returns what a query in the namespace of the VMs finds, "" if it finds nothing.
func (w *world) find(q objects.Query) string {
	w.Helper()
	if q.Namespace == "" {
		q.Namespace = namespace
	}
	out, err := w.objects.Find(w.Context(), q)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// share returns a part of the CPU that a node has for pods.
func (w *world) share(percent int) string {
	w.Helper()
	text := w.Kubectl(w, "get", "node", w.a.Name, "-o", "jsonpath={.status.allocatable.cpu}")
	number, milli := strings.CutSuffix(text, "m")
	n, err := strconv.Atoi(number)
	if err != nil {
		w.Fatalf("allocatable CPU: %v", err)
	}
	if !milli {
		n *= 1000
	}
	return fmt.Sprintf("%dm", n*percent/100)
}

// plan describes a VM. cpu is what its launcher requests, "" = next to nothing.
type plan struct {
	name, behaviour, cpu string
	grace                int
}

type vm struct {
	plan
	w   *world
	on  *cluster.Node
	uid string // of the VMI
	pod string // the launcher's name
}

// vms makes VMs on a node and waits until KubeVirt says that they run and their guests are
// up. The VMIs have every field of KubeVirt's release.
func (w *world) vms(on *cluster.Node, plans ...plan) []*vm {
	w.Helper()
	w.others(on, "cordon")
	var all []*vm
	for _, p := range plans {
		w.afterwards("delete", "vmi", "-n", namespace, p.name, "--ignore-not-found", "--timeout=60s")
		w.KubectlApply(w, w.vmi(p))
		all = append(all, &vm{plan: p, w: w, on: on})
	}
	for _, v := range all {
		node.Eventually(w, 2*soon, func() bool { return v.get("{.status.phase}") == "Running" }, "%s does not run", v.name)
		v.uid = v.get("{.metadata.uid}")
		v.pod = w.find(objects.Query{Kind: "pod", Labels: "kubevirt.io/created-by=" + v.uid, Path: "{.items[*].metadata.name}"})
		node.Eventually(w, 2*soon, func() bool { return v.says("vmgrace-guest: up") }, "the guest of %s does not boot", v.name)
	}
	w.others(on, "uncordon")
	w.step("%d VMs on %s", len(all), on.Name)
	return all
}

// others cordons or uncordons all nodes but one.
func (w *world) others(on *cluster.Node, command string) {
	w.Helper()
	for _, n := range w.Nodes {
		if n != on {
			w.Kubectl(w, command, n.Name)
		}
	}
}

// vmi returns the VMI of a plan.
func (w *world) vmi(p plan) string {
	w.Helper()
	text, err := os.ReadFile("../../api/kubevirt/testdata/vmi.json")
	if err != nil {
		w.Fatal(err)
	}
	var o map[string]any
	if err := json.Unmarshal(text, &o); err != nil {
		w.Fatal(err)
	}
	if p.cpu == "" {
		p.cpu = "5m"
	}
	for path, value := range map[string]any{
		"metadata":                                   map[string]any{"name": p.name, "namespace": namespace},
		"spec.domain.resources.requests":             map[string]any{"cpu": p.cpu},
		"spec.domain.firmware.kernelBoot.kernelArgs": "console=ttyS0 quiet " + p.behaviour,
		"spec.terminationGracePeriodSeconds":         int64(p.grace),
		"spec.evictionStrategy":                      "LiveMigrate",
		"spec.nodeSelector":                          map[string]any{},
	} {
		if err := unstructured.SetNestedField(o, value, strings.Split(path, ".")...); err != nil {
			w.Fatal(err)
		}
	}
	out, err := json.Marshal(o)
	if err != nil {
		w.Fatal(err)
	}
	return string(out)
}

func (v *vm) get(path string) string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "vmi", Name: v.name, Path: path})
}

// serial returns what the guest has written to its console, line by line with the time, on
// both nodes. It keeps the logs of the launchers, which kubelet removes with them.
func (v *vm) serial() string {
	v.w.Helper()
	const script = `mkdir -p /var/log/kept; for log in /var/log/pods/%[1]s_virt-launcher-%[2]s-*/compute/*.log; do
		[ ! -e "$log" ] || ln -f "$log" "/var/log/kept/$(echo "$log" | tr / _)"; done; cat /var/log/kept/*_virt-launcher-%[2]s-* 2>/dev/null || :`
	var all strings.Builder
	for _, n := range v.w.Nodes {
		all.WriteString(n.Run(v.w, fmt.Sprintf(script, namespace, v.name)) + "\n")
	}
	return all.String()
}

func (v *vm) says(text string) bool { v.w.Helper(); return strings.Contains(v.serial(), text) }

// pressed waits until the guest notices a press of its power button, and returns when the
// first one was.
func (v *vm) pressed() (at time.Time) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool { return v.says("vmgrace-guest: press 1") }, "the guest of %s is not asked", v.name)
	for line := range strings.Lines(v.serial()) {
		if begin, _, _ := strings.Cut(line, " "); strings.Contains(line, "vmgrace-guest: press 1") {
			return node.WallTime(v.w, begin)
		}
	}
	return at
}

// moved waits until the VM runs on another node, its guest was not asked, and nothing is
// left of it where it was.
func (v *vm) moved(to *cluster.Node) {
	v.w.Helper()
	begin := time.Now()
	node.Eventually(v.w, 90*time.Second, func() bool { return v.get("{.status.nodeName}") == to.Name }, "%s does not move to %s", v.name, to.Name)
	v.w.step("%s has moved to %s, %.1f s after that was looked for", v.name, to.Name, time.Since(begin).Seconds())
	v.gone(v.pod)
	if v.says("press") {
		v.w.Errorf("the guest of %s was asked:\n%s", v.name, v.serial())
	}
	if n := strings.Count(v.serial(), "vmgrace-guest: up"); n != 1 {
		v.w.Errorf("the guest of %s booted %d times", v.name, n)
	}
	v.on = to
	v.pod = v.w.find(objects.Query{Kind: "pod", Labels: "kubevirt.io/created-by=" + v.uid, Fields: "status.phase=Running", Path: "{.items[*].metadata.name}"})
}

// gone waits until a launcher pod is gone.
func (v *vm) gone(pod string) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool {
		return v.w.find(objects.Query{Kind: "pod", Name: pod, Path: "{.metadata.name}"}) == ""
	}, "the launcher %s does not go", pod)
}

// migrations returns the phases of the VM's migrations with who has made them.
func (v *vm) migrations() string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "vmim", Path: `{range .items[?(@.spec.vmiName=="` + v.name + `")]}{.spec.priority} {.status.phase};{end}`})
}

// important makes a pod of higher priority on a node, which takes most of it.
func (w *world) important(on *cluster.Node) {
	w.Helper()
	w.afterwards("delete", "-n", namespace, "pod/important", "priorityclass/important", "--ignore-not-found", "--grace-period=1")
	w.KubectlApply(w, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: important}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {name: important, namespace: `+namespace+`}
spec:
  priorityClassName: important
  nodeSelector: {kubernetes.io/hostname: `+on.Name+`}
  containers:
    - {name: sleep, image: "local.test/busybox:1", command: [sleep, "3600"], resources: {requests: {cpu: `+w.share(78)+`}}}
`)
}

func (w *world) importantRuns() {
	w.Helper()
	w.Kubectl(w, "wait", "-n", namespace, "--for=jsonpath={.status.phase}=Running", "pod/important", "--timeout=90s")
	w.step("the more important pod runs")
}
