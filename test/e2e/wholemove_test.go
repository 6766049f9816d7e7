package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// withoutLibvirt stops the nodes' libvirtds until the test ends.
func (w *world) withoutLibvirt() {
	w.Helper()
	for _, n := range w.Nodes {
		if err := n.StopLibvirtd(w.Context()); err != nil {
			w.Fatal(err)
		}
		w.restore(n.StartLibvirtd)
	}
}

// emptied drains a node by kubectl drain and uncordons it. It returns what kubectl has printed.
func (w *world) emptied(n *cluster.Node) string {
	w.Helper()
	begin := time.Now()
	said, err := w.Command(w.Context(), "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=150s").CombinedOutput()
	out := string(said)
	w.Kubectl(w, "uncordon", n.Name)
	if err != nil {
		w.Fatalf("kubectl drain: %v\n%s\n%s", err, out, w.Kubectl(w, "get", "vmi,vmim,pods", "-A", "-o", "wide"))
	}
	w.step("kubectl drain %s: exit status 0 after %.1f s", n.Name, time.Since(begin).Seconds())
	return out
}

// Given nodes without libvirt. When a user applies the example and drains the VM's node, there and
// back, then kubectl drain says what it says with KubeVirt, the same guest runs on elsewhere, and
// the VMI's deletion deletes all of it.
func TestOneFileMakesAVMThatADrainMoves(t *testing.T) {
	w := given(t)
	w.controller()
	w.withoutLibvirt()
	text, err := os.ReadFile("../../deploy/examples/vm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range w.Nodes {
		w.afterwards("uncordon", n.Name)
	}
	w.Kubectl(t, "cordon", w.b.Name)
	v := w.apply(&whole{w: w, namespace: "default", name: "vm-example", on: w.a, manifest: string(text)})
	v.movable()
	w.Kubectl(t, "uncordon", w.b.Name)
	w.step("kubectl apply: it runs on %s", w.a.Name)
	if again := w.KubectlApply(t, v.manifest); strings.Count(again, "unchanged") != 2 {
		t.Errorf("applied again:\n%s", again)
	}

	moves := 2
	if os.Getenv("VMGRACE_SOAK") != "" {
		moves = 20
	}
	for i := range moves {
		from, to := w.Nodes[i%2], w.Nodes[(i+1)%2]
		begin := v.up
		said := w.emptied(from)
		v.moved(to)
		if mark := `Eviction triggered evacuation of VMI "default/vm-example"`; !strings.Contains(said, mark) {
			t.Errorf("kubectl drain does not say %s:\n%s", mark, said)
		}
		w.step("it runs on %s, up for %d s, before that for %d s", to.Name, v.up, begin)
	}
	if n := v.asked(); n != 0 {
		t.Errorf("%d Events of a shutdown", n)
	}
	if got := v.migrations(); strings.Count(got, "Succeeded Eviction;") != min(moves, 5) || strings.Contains(got, "Failed") {
		t.Errorf("migrations: %s", got)
	}

	w.Kubectl(t, "delete", "vmi", "vm-example")
	v.gone()
	w.step("kubectl delete: nothing is left")
}

// Given a VM in its pod, and a cluster that lets its shutdown be held. When its launcher is
// preempted, or its node is tainted, then it is moved. When it cannot be moved, then an uncordon
// takes the mark away. When it is deleted in a migration, then it is shut down where it is.
func TestAVMInItsPodLeavesATaintAndAPreemption(t *testing.T) {
	w := given(t)
	w.controller()
	w.withoutLibvirt()
	w.holding("150s")
	w.letsHold("150")
	v := w.whole(w.a, "held", "polite")
	v.movable()
	const preempted, tainted = "Succeeded PreemptionByScheduler;", "Succeeded DeletionByTaintManager;"

	pod := v.pod()
	w.Kubectl(t, "patch", "pod", "-n", v.namespace, pod, "--subresource=status", "-p",
		fmt.Sprintf(`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler","lastTransitionTime":%q}]}}`,
			time.Now().UTC().Format(time.RFC3339)))
	w.delete("pod/" + pod)
	node.Eventually(t, 2*soon, func() bool { return v.migrations() == preempted }, "it is not moved: %s", v.migrations())
	v.moved(w.b)
	w.step("preempted: moved")

	const taint = "vmgrace.dev/whole"
	w.restore(func(ctx context.Context) error {
		_, _ = w.TryKubectl(ctx, "", "taint", "node", w.b.Name, taint+"-") // the test takes it away itself, if it gets so far
		return nil
	})
	w.Kubectl(t, "taint", "node", w.b.Name, taint+"=1:NoExecute")
	node.Eventually(t, 2*soon, func() bool { return v.migrations() == preempted+tainted }, "it is not moved: %s", v.migrations())
	v.moved(w.a)
	w.step("tainted: moved")

	// When it has nowhere to go, then its node's uncordon takes the mark and the migration away.
	w.afterwards("uncordon", w.a.Name)
	_, stop := w.drain(w.a.Name)
	node.Eventually(t, soon, func() bool { return v.vmi("{.status.evacuationNodeName}") == w.a.Name }, "it is not marked")
	stop()
	w.Kubectl(t, "uncordon", w.a.Name)
	node.Eventually(t, soon, func() bool { return v.vmi("{.status.evacuationNodeName}") == "" }, "the mark outlives the uncordon")
	w.Kubectl(t, "taint", "node", w.b.Name, taint+"-")
	if v.uptime() < v.up {
		t.Error("the guest does not go on")
	}
	w.step("uncordoned: it stays")

	// When a migration is deleted as soon as it has a target pod, then one launcher is left, with the guest.
	node.Eventually(t, soon, func() bool { return v.launchers() == 1 }, "the target pod of the drain is left")
	v.migrate("cancelled")
	node.Eventually(t, soon, func() bool { return v.launchers() == 2 }, "it has no target pod")
	w.delete("vmim/cancelled")
	node.Eventually(t, soon, func() bool { return v.launchers() == 1 }, "the target pod of a deleted migration is left")
	if !node.Poll(t.Context(), soon, func() bool {
		if v.vmi("{.status.nodeName}") == w.b.Name {
			v.on = w.b // it had arrived
		}
		return v.uptime() > v.up
	}) {
		t.Fatalf("the guest does not go on: its pods %s", v.pods())
	}
	if n := v.asked(); n != 0 {
		t.Errorf("%d Events of a shutdown", n)
	}
	w.step("cancelled: it runs on %s", v.on.Name)

	// When the VMI is deleted while its guest is sent, then the guest is asked where it is.
	v.migrate("last")
	w.Kubectl(t, "wait", "vmim", "-n", v.namespace, "last", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
	w.delete("vmi/" + v.name)
	v.gone()
	node.Eventually(t, soon, func() bool { return v.asked() == 2 }, "not ShutdownStarted and ShutdownCompleted, once: %d", v.asked())
}
