package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

const controllerDir = "../../deploy/controller"

// controller applies deploy/controller as it is shipped and waits until both replicas are
// ready. It deletes them when the test ends.
func (w *world) controller() {
	w.Helper()
	w.afterwards("delete", "-k", controllerDir, "--ignore-not-found")
	w.Kubectl(w, "apply", "-k", controllerDir)
	w.Cleanup(w.controllersSaid)
	w.Kubectl(w, "rollout", "status", "-n", agents, "deploy/cluster-controller", "--timeout=60s")
	w.step("kubectl apply -k deploy/controller, two replicas ready")
}

// controllersSaid logs the controllers' pods and logs if the test has failed.
func (w *world) controllersSaid() {
	if !w.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const ours = "app.kubernetes.io/name=cluster-controller"
	pods, err := w.TryKubectl(ctx, "", "describe", "pods", "-n", agents, "-l", ours)
	w.Logf("the controllers' pods (%v)\n%s", err, pods)
	out, err := w.TryKubectl(ctx, "", "logs", "-n", agents, "-l", ours, "--prefix", "--tail=200")
	w.Logf("the controllers said (%v)\n%s", err, out)
}

// askToBeMoved gives VMs the strategy LiveMigrate and the condition LiveMigratable, as their
// node would.
func (w *world) askToBeMoved(vms ...*vm) {
	w.Helper()
	for _, v := range vms {
		w.Kubectl(w, "patch", "vmi", "-n", namespace, v.Name, "--type=merge", "-p", `{"spec":{"evictionStrategy":"LiveMigrate"}}`)
		w.Kubectl(w, "patch", "vmi", "-n", namespace, v.Name, "--subresource=status", "--type=merge", "-p",
			`{"status":{"phase":"Running","nodeName":"`+v.Node.Name+`","conditions":[{"type":"LiveMigratable","status":"True"}]}}`)
	}
}

// liveMigratable has VMs ask to be moved, and waits until their budgets are in force.
func (w *world) liveMigratable(vms ...*vm) {
	w.Helper()
	w.askToBeMoved(vms...)
	for _, v := range vms {
		node.Eventually(w, soon, func() bool {
			return w.find(objects.Query{Kind: "pdb", Namespace: namespace, Name: "kubevirt-disruption-budget-" + v.uid,
				Path: "{.spec.minAvailable}/{.status.currentHealthy}/{.status.disruptionsAllowed}"}) == "1/1/0"
		}, "the disruption budget of %s is not in force", v.Name)
	}
}

// drain runs kubectl drain until stop is called. said returns what kubectl has printed.
func (w *world) drain(name string) (said func() string, stop func()) {
	w.Helper()
	out, err := os.Create(filepath.Join(w.TempDir(), "drain"))
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	cmd := w.Command(ctx, "drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--force")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		cancel()
		w.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		_ = cmd.Wait() // killed
		_ = out.Close()
	})
	said = func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			w.Error(err)
		}
		return string(text)
	}
	w.Cleanup(func() {
		stop()
		w.Logf("kubectl drain said\n%s", said())
	})
	return said, stop
}

func TestADrainStopsNoVMThatAskedToBeMoved(t *testing.T) {
	w := given(t)
	// Given no webhook: an Event is all that warns of a launcher pod with too short a grace
	// period.
	short := plan{Spec: deaf(), grace: 30, podGrace: 30}
	w.vm(short).told("PodGraceTooShort")
	w.controller()
	// Given no room on the other node: each node has the CPU for one VM of this size, and
	// each has such a VM.
	cpu := w.moreThanHalf()
	short.Spec, short.on = slow(), w.b
	all := w.vms(plan{Spec: deaf(), grace: 30, on: w.b, cpu: cpu}, short, plan{Spec: deaf(), grace: 5, cpu: cpu})
	moved, stopped := all[0], all[1]
	if got := w.get("pod", "virt-launcher-"+stopped.Name, "{.spec.terminationGracePeriodSeconds}"); got != "60" {
		t.Errorf("the launcher pod's grace period is %s s, want the VM's 30 and 30 more", got)
	}
	w.liveMigratable(moved)
	w.KubectlApply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: %s}
spec: %s`, namespace, podSpec(w.b.Name, "")))
	w.afterwards("delete", "pod", "-n", namespace, "other", "--ignore-not-found", "--grace-period=0", "--force")
	w.step("two VMs, of which one asks to be moved and finds no room, and another pod")

	// When the node is drained
	w.afterwards("uncordon", w.b.Name)
	from := time.Now()
	said, stop := w.drain(w.b.Name)

	// Then the first answer tells of the mark, and the second one of the budget.
	mark := fmt.Sprintf(`Eviction triggered evacuation of VMI "%s/%s"`, namespace, moved.Name)
	node.Eventually(t, soon, func() bool { return strings.Contains(said(), mark) }, "kubectl drain does not say %s", mark)
	w.step("kubectl drain: %s", mark)
	const budget = "Cannot evict pod as it would violate the pod's disruption budget."
	node.Eventually(t, soon, func() bool { _, then, _ := strings.Cut(said(), mark); return strings.Contains(then, budget) },
		"kubectl drain does not go on with the budget's answer")
	w.step("kubectl drain: %s", budget)
	if got := moved.vmi("{.status.evacuationNodeName} {.status.vmgraceMark.cause} {.status.vmgraceMark.cordoned}"); got != w.b.Name+" Eviction true" {
		t.Errorf("the mark, its cause and whether the node was cordoned: %s", got)
	}
	node.Eventually(t, soon, func() bool { return strings.HasPrefix(moved.evacuations(), "kubevirt-evacuation-") }, "there is no migration of %s", moved.Name)

	// Then other pods are evicted as usual, and a VM without the strategy shuts down
	// gracefully. The VM that asked to be moved is marked once, and nothing stops it.
	stopped.evicted(from)
	node.Eventually(t, soon, func() bool {
		return w.find(objects.Query{Kind: "pod", Namespace: namespace, Name: "other", Path: "{.metadata.name}"}) == ""
	}, "the other pod is still there")
	stop()
	if text := said(); strings.Count(text, mark) != 1 {
		t.Errorf("marked again:\n%s", text)
	}
	if n := strings.Count(moved.evacuations(), "kubevirt-evacuation-"); n != 1 {
		t.Errorf("%d migrations, want one", n)
	}
	w.untouched(moved)
	if got := w.get("pod", "virt-launcher-"+moved.Name, "{.metadata.uid} {.metadata.deletionTimestamp}"); got != moved.pod {
		t.Errorf("its launcher pod is not left alone: %s", got)
	}

	// When the node is uncordoned, then the mark is removed and the VM stays.
	w.Kubectl(t, "uncordon", w.b.Name)
	node.Eventually(t, soon, func() bool { return moved.vmi("{.status.evacuationNodeName}") == "" }, "the mark outlives the uncordon")
	w.untouched(moved)
	w.step("uncordoned: the mark is gone")
}

// vmi reads from the VM's VMI.
func (v *vm) vmi(path string) string { v.w.Helper(); return v.w.get("vmi", v.Name, path) }

// evacuations returns the names of the VM's migrations.
func (v *vm) evacuations() string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "vmim", Namespace: namespace, Path: `{range .items[?(@.spec.vmiName=="` + v.Name + `")]}{.metadata.name}{"\n"}{end}`})
}
