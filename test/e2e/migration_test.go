package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// arrived returns the VM as it is on the node to which it was moved, with its QEMU, its
// launcher and its console there.
func (v *vm) arrived(on *cluster.Node) *vm {
	v.w.Helper()
	there := &vm{w: v.w, uid: v.uid, grace: v.grace, Guest: v.At(v.w, on)}
	there.pod = v.w.find(objects.Query{Kind: "pod", Namespace: namespace, Labels: "kubevirt.io/created-by=" + v.uid,
		Fields: "status.phase=Running,spec.nodeName=" + on.Name, Path: "{.items[*].metadata.uid}"}) // it may have been there before
	return there
}

// moved checks that the VM runs on another node as the same guest: it has not booted again
// and was not asked to shut down. It returns the VM as it is there.
func (v *vm) moved(to *cluster.Node) *vm {
	w := v.w
	w.Helper()
	if !v.Gone(w) {
		w.Errorf("QEMU of %s is still on %s", v.Name, v.Node.Name)
	}
	there := v.arrived(to)
	if up, presses := v.boots(there), v.Presses(w)+there.Presses(w); up != 1 && !v.Firmware || presses != 0 {
		w.Errorf("%s booted %d times and was asked %d times", v.Name, up, presses)
	}
	if got := v.vmi(`{.status.nodeName} {.metadata.labels.kubevirt\.io/nodeName} {.status.evacuationNodeName}`); strings.TrimSpace(got) != to.Name+" "+to.Name {
		w.Errorf("%s: node, label and mark of the VMI are %q", v.Name, got)
	}
	node.Eventually(w, soon, func() bool {
		return w.get("pdb", "kubevirt-disruption-budget-"+v.uid, "{.spec.minAvailable}/{.status.currentHealthy}/{.status.disruptionsAllowed}") == "1/1/0"
	}, "the budget of %s does not keep one again", v.Name)
	v.forgottenBy(v.Node)
	there.waitGuarded()
	return there
}

// boots counts how often a guest that says so has booted on two nodes. Each QEMU goes on with the
// console's file of its node.
func (v *vm) boots(there *vm) int {
	v.w.Helper()
	return strings.Count(v.Serial(v.w)+there.Serial(v.w), "vmgrace-guest: up")
}

// migrations returns the phase and the cause of each migration of the VM.
func (v *vm) migrations() string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "vmim", Namespace: namespace,
		Path: `{range .items[?(@.spec.vmiName=="` + v.Name + `")]}{.status.phase} {.metadata.annotations.vmgrace\.io/evacuation-cause};{end}`})
}

func TestADrainMovesVMsThatAskedToBeMoved(t *testing.T) {
	w := given(t)
	w.controller()
	all := w.vms(plan{grace: 30, on: w.b}, plan{grace: 30, on: w.b}, plan{grace: 30, on: w.b})
	w.liveMigratable(all...)

	// When their node is drained
	w.afterwards("uncordon", w.b.Name)
	begin := time.Now()
	out, err := w.TryKubectl(t.Context(), "", "drain", w.b.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
	if err != nil {
		t.Fatalf("kubectl drain: %v\n%s\n%s", err, out, w.Kubectl(t, "get", "vmim", "-n", namespace, "-o", "yaml"))
	}
	w.step("kubectl drain: exit status 0 after %.1f s", time.Since(begin).Seconds())

	// Then the same guests run on the other node.
	var there []*vm
	for _, v := range all {
		if got := v.migrations(); got != "Succeeded Eviction;" {
			t.Errorf("migrations of %s: %s", v.Name, got)
		}
		there = append(there, v.moved(w.a))
	}
	w.step("%d guests are on %s", len(there), w.a.Name)

	// When the other node is drained with five more VMs by kubectl vmdrain, then all move
	// back, two at a time, and vmdrain says of each when it moves and when it has left.
	w.Kubectl(t, "uncordon", w.b.Name)
	w.afterwards("uncordon", w.a.Name)
	more := w.vms(slices.Repeat([]plan{{grace: 30}}, 5)...)
	w.liveMigratable(more...)
	said := w.vmdrain(w.a, func() {
		w.twoLeave(w.a)
	})
	for i, v := range slices.Concat(there, more) {
		now := v.moved(w.b)
		if i < len(there) {
			there[i] = now
		}
		for _, state := range []string{"Moving", "Drained"} {
			if !slices.ContainsFunc(said, func(s podState) bool { return s.State == state && strings.HasPrefix(s.Pod, "virt-launcher-"+v.Name) }) {
				t.Errorf("kubectl vmdrain does not say of %s: %s", v.Name, state)
			}
		}
	}
	w.step("%d guests are on %s", len(there)+len(more), w.b.Name)

	// When a user creates a migration, then that VM moves, too.
	w.Kubectl(t, "uncordon", w.a.Name)
	w.KubectlApply(t, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: back, namespace: `+namespace+`}
spec: {vmiName: `+all[0].Name+`}
`)
	w.afterwards("delete", "vmim", "-n", namespace, "back", "--ignore-not-found")
	w.Kubectl(t, "wait", "vmim", "-n", namespace, "back", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	back := there[0].moved(w.a)
	w.step("%s is on %s again", back.Name, w.a.Name)

	// When moved VMs are deleted, then their grace periods are the same as before, and the
	// guests shut down on their new nodes.
	for _, v := range []*vm{back, there[1]} {
		w.delete("vmi/" + v.Name)
		v.WaitGone(t, soon)
		if n := v.Presses(t); n == 0 {
			t.Errorf("%s was not asked on %s", v.Name, v.Node.Name)
		}
		v.ended(either, "Graceful", "ShutdownStarted", "ShutdownCompleted")
	}
}

// podState is what kubectl vmdrain -o json says of a pod.
type podState struct{ Pod, State string }

// vmdrain drains a node by kubectl vmdrain and returns what vmdrain has said. It calls look
// again and again until vmdrain ends.
func (w *world) vmdrain(n *cluster.Node, look func()) (said []podState) {
	w.Helper()
	code, log := w.runVMDrain(n, look, "--timeout=180s", "-o", "json")
	if code != 0 {
		w.Fatalf("kubectl vmdrain: exit status %d\n%s", code, log)
	}
	for line := range strings.Lines(log) {
		var s podState
		if json.Unmarshal([]byte(line), &s) == nil { // other lines are warnings
			said = append(said, s)
		}
	}
	return said
}

// runVMDrain runs kubectl vmdrain, which may fail, and calls look until it ends.
func (w *world) runVMDrain(n *cluster.Node, look func(), args ...string) (code int, log string) {
	w.Helper()
	program, err := w.buildVMDrain()
	if err != nil {
		w.Fatal(err)
	}
	args = append([]string{n.Name, "--kubeconfig=" + w.Kubeconfig, "--ignore-daemonsets", "--delete-emptydir-data", "--force"}, args...)
	p, err := node.StartProcess(exec.CommandContext(w.Context(), program, args...), filepath.Join(w.TempDir(), "vmdrain"))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(p.Kill)
	node.Eventually(w, 4*time.Minute, func() (ended bool) {
		look()
		code, ended = p.Exited(0)
		return ended
	}, "kubectl vmdrain does not end")
	w.step("kubectl vmdrain %s: exit status %d", n.Name, code)
	return code, p.Log()
}

// twoLeave asserts that no more than two VMs leave a node at once. These two are sent. Four
// more may have a target pod: two that have a slot, and two that leave their slot to others
// because the scheduler has not placed their pod.
func (w *world) twoLeave(from *cluster.Node) {
	w.Helper()
	if sent, waiting := w.leaving(); sent > 2 || waiting > 4 {
		w.Errorf("%d VMs leave %s at once, and %d more have a target pod", sent, from.Name, waiting)
	}
}

// leaving counts the guests that are sent, and those that only have a target pod.
func (w *world) leaving() (sent, waiting int) {
	w.Helper()
	for _, phase := range strings.Fields(w.find(objects.Query{Kind: "vmim", Namespace: namespace, Path: "{.items[*].status.phase}"})) {
		switch phase {
		case "Pending", "Succeeded", "Failed":
		case "Scheduling":
			waiting++
		default:
			sent++
		}
	}
	return sent, waiting
}
