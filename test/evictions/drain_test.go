//go:build !unit

package evictions

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given a node with VMs that can move, a VM that is not live-migratable and a VM without a
// strategy. When a drain is tried with --dry-run=server, then it ends, says what would become of
// each, and marks none. When kubectl vmdrain drains the node, then it understands the webhook's
// answers: it waits for the VMs that move, names the one that cannot move at once, and the
// one without a strategy shuts down. Otherwise a drain would wait for a VM that never
// leaves.
func TestADrainTellsTheWebhooksAnswersApart(t *testing.T) {
	replicas(t, 1)
	binary := filepath.Join(t.TempDir(), "kubectl-vmdrain")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/kubectl-vmdrain").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "drained-"}}
	shared.In(t, "").Make(n, "")
	moves := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: n.Name})
	moves.budget()
	stays := newVM(t, vm{strategy: "LiveMigrate", node: n.Name})
	ends := newVM(t, vm{node: n.Name})
	external := newVM(t, vm{strategy: "External", node: n.Name})
	external.budget()
	disk := moves.newPod(metav1.ObjectMeta{
		Name: "hp-volume-" + moves.name, OwnerReferences: moves.owner(), Labels: map[string]string{kubevirt.AppLabel: kubevirt.HotplugApp},
	})

	dry, err := exec.Command(binary, "--kubeconfig="+shared.Kubeconfig, "--force", "--dry-run=server", n.Name).CombinedOutput()
	for _, want := range []string{
		moves.launcher() + " (server dry run): Moving: its VM would be moved\n", external.launcher() + " (server dry run): Moving: its VM would be moved\n",
		stays.launcher() + " (server dry run): Failed: ", ends.launcher() + " (server dry run): Accepted\n", "would not be drained",
	} {
		if err == nil || !strings.Contains(string(dry), want) || moves.get().Status.EvacuationNodeName != "" {
			t.Errorf("the dry run does not say %q, or has marked (%v):\n%s", want, err, dry)
		}
	}

	p, err := node.StartProcess(exec.Command(binary, "--kubeconfig="+shared.Kubeconfig, "--force", n.Name), filepath.Join(t.TempDir(), "log"))
	kit.Must(t, err)
	t.Cleanup(p.Kill)
	for _, want := range []string{
		moves.launcher() + ": Moving",
		stays.launcher() + ": Failed: ", "not live-migratable",
		ends.launcher() + ": Terminating",
		external.launcher() + ": Moving",
		disk.Name + ": Blocked: it holds a volume of a VM and goes with it",
	} {
		kit.Eventually(t, "it says "+want, func() bool { return strings.Contains(p.Log(), want) })
	}
	if got := moves.get().Status.EvacuationNodeName; got != n.Name {
		t.Errorf("the VM that moves is marked for %q", got)
	}
	for _, pod := range []string{moves.launcher(), external.launcher(), ends.launcher(), disk.Name} { // their VMs have moved or shut down
		kit.Must(t, shared.Delete(t.Context(), rig.Read[corev1.Pod](moves.Space, pod), client.GracePeriodSeconds(0)))
	}
	if status, ended := p.Exited(soon); !ended || status != 1 {
		t.Errorf("exit status %d, ended %v", status, ended)
	}
	if log := p.Log(); !strings.Contains(log, "pods left: 1\n  default/"+stays.launcher()+": Failed") || !stays.podThere() {
		t.Errorf("it does not name the VM that stays:\n%s", log)
	}
}
