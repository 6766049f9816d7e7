//go:build !unit

package evictions

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// What kubectl vmdrain makes of the webhook's own words: a VM that moves is waited
// for, one that cannot is named at once, one without a strategy is shut down.
func TestADrainTellsTheWebhooksAnswersApart(t *testing.T) {
	replicas(t, 1)
	binary := filepath.Join(t.TempDir(), "kubectl-vmdrain")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/kubectl-vmdrain").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "drained-"}}
	kit.Must(t, shared.objects.Create(t.Context(), n))
	t.Cleanup(func() { _ = shared.objects.Delete(contextOf(t), n) })
	moves := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: n.Name})
	moves.budget(t)
	stays := newVM(t, vm{strategy: "LiveMigrate", node: n.Name})
	ends := newVM(t, vm{node: n.Name})
	external := newVM(t, vm{strategy: "External", node: n.Name})
	external.budget(t)
	disk := newPod(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: moves.namespace, Name: "hp-volume-" + moves.name, OwnerReferences: moves.owner(t), Labels: map[string]string{kubevirt.AppLabel: kubevirt.HotplugApp},
	}, Spec: corev1.PodSpec{NodeName: n.Name}})

	p, err := node.StartProcess(exec.Command(binary, "--kubeconfig="+shared.api.Kubeconfig, "--force", n.Name), filepath.Join(t.TempDir(), "log"))
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
	if got := moves.get(t).Status.EvacuationNodeName; got != n.Name {
		t.Errorf("the VM that moves is marked for %q", got)
	}
	for _, pod := range []string{moves.launcher(), external.launcher(), ends.launcher(), disk.Name} { // moved, or shut down
		kit.Must(t, shared.core.CoreV1().Pods(moves.namespace).Delete(t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
	if status, ended := p.Exited(soon); !ended || status != 1 {
		t.Errorf("exit status %d, ended %v", status, ended)
	}
	if log := p.Log(); !strings.Contains(log, "pods left: 1\n  default/"+stays.launcher()+": Failed") || !stays.podThere(t) {
		t.Errorf("it does not name the VM that stays:\n%s", log)
	}
}
