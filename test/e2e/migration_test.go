package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// arrived finds the VM on the node that it was moved to, as a VM of its own: its
// QEMU, its launcher and its console there.
func (v *vm) arrived(on *cluster.Node) *vm {
	v.w.Helper()
	there := &vm{w: v.w, uid: v.uid, grace: v.grace, Guest: v.At(v.w, on)}
	there.pod = v.w.Kubectl(v.w, "get", "pod", "-n", namespace, "-l", "kubevirt.io/created-by="+v.uid,
		"--field-selector", "spec.nodeName="+on.Name, "-o", "jsonpath={.items[*].metadata.uid}")
	return there
}

func TestADrainMovesAVMThatAskedToBeMoved(t *testing.T) {
	w := given(t)
	w.controller()
	v := w.vm(plan{Spec: node.Spec{}, grace: 30, on: w.b})
	v.movable()

	// When its node is drained
	w.afterwards("uncordon", w.b.Name)
	begin := time.Now()
	out, err := w.TryKubectl(t.Context(), "", "drain", w.b.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
	if err != nil {
		t.Fatalf("kubectl drain: %v\n%s\n%s", err, out, w.Kubectl(t, "get", "vmim", "-n", namespace, "-o", "yaml"))
	}
	w.step("kubectl drain: exit status 0 after %.1f s", time.Since(begin).Seconds())

	// Then the same guest runs on the other node: nobody booted it, nobody asked it to end.
	there := v.arrived(w.a)
	if !v.Gone(t) {
		t.Error("QEMU is still on the drained node")
	}
	if up, presses := strings.Count(there.Serial(t), "vmgrace-guest: up"), v.Presses(t)+there.Presses(t); up != 0 || presses != 0 {
		t.Errorf("the guest booted %d more times and was asked %d times", up, presses)
	}
	if got := v.vmi(`{.status.nodeName} {.metadata.labels.kubevirt\.io/nodeName} {.status.evacuationNodeName}`); strings.TrimSpace(got) != w.a.Name+" "+w.a.Name {
		t.Errorf("its VMI: node, label and mark %q", got)
	}
	if got := w.Kubectl(t, "get", "vmim", "-n", namespace, "-o", `jsonpath={range .items[?(@.spec.vmiName=="`+v.Name+`")]}{.status.phase} {.metadata.annotations.vmgrace\.io/evacuation-cause};{end}`); got != "Succeeded Eviction;" {
		t.Errorf("its migrations: %s", got)
	}
	node.Eventually(t, soon, func() bool {
		return w.get("pdb", "kubevirt-disruption-budget-"+v.uid, "{.spec.minAvailable}/{.status.currentHealthy}/{.status.disruptionsAllowed}") == "1/1/0"
	}, "its budget does not keep one again")
	v.forgottenBy(w.b)
	there.waitGuarded()
	w.step("the guest is on %s", w.a.Name)

	// And its grace period is what it was, and begins there.
	w.delete("vmi/" + v.Name)
	there.WaitGone(t, soon)
	if n := there.Presses(t); n == 0 {
		t.Error("the guest was not asked on its new node")
	}
	there.ended(either, "Graceful", "ShutdownStarted", "ShutdownCompleted")
}
