//go:build nightly && !unit

package evictions

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

// full is the number of pods that a node has at most by default.
const full = 110

var evictionAnswers = regexp.MustCompile(`(?m)^apiserver_request_total\{code="(\d+)".*subresource="eviction".* (\d+)$`)

// answered returns how often the API server has answered evictions with each code.
func answered(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, found := range evictionAnswers.FindAllStringSubmatch(shared.Kubectl(t, "get", "--raw", "/metrics"), -1) {
		n, err := strconv.Atoi(found[2])
		kit.Must(t, err)
		all[found[1]] += n
	}
	return all
}

// Given a node that is full of VMs which can move. When it is drained, by kubectl or by vmgrace,
// then each eviction is answered with 429 and each VM is marked by one write. Otherwise a drain of
// one node would stop guests, or load the API server.
func TestADrainOfAFullNodeMarksEachVMOnce(t *testing.T) {
	t.Cleanup(func() { tidyMigrations(t) }) // when the replica has ended
	all := replicas(t, 1, "--controllers=disruption-budgets,evacuation", "--leader-elect=false")
	vmgrace := filepath.Join(t.TempDir(), "kubectl-vmgrace")
	if out, err := exec.Command("go", "build", "-o", vmgrace, "../../cmd/kubectl-vmgrace").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kubectl := shared.Command(t.Context()).Path
	for name, program := range map[string]string{"kubectl": kubectl, "vmgrace": vmgrace} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "full-"}}
			shared.In(t, "").Make(n, rig.NodeReady)
			vms := make([]*vm, full)
			for i := range vms {
				vms[i] = newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: n.Name})
			}
			for _, v := range vms {
				v.budgetExists()
			}
			before, marks, writes := answered(t), counted(all, "vmgrace_evictions_total", `verdict="marked"`), requests(t)
			cmd := exec.Command(program, "drain", "--force", n.Name)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig)
			p, err := node.StartProcess(cmd, filepath.Join(t.TempDir(), "log"))
			kit.Must(t, err)
			t.Cleanup(p.Kill)
			node.Eventually(t, 2*time.Minute, func() bool {
				return len(vms[0].Migrations()) >= full && answered(t)["429"]-before["429"] >= 2*full
			}, "each VM has its migration, and has been evicted again")
			now := answered(t) // before the end of the drain, which breaks off those that are under way
			p.Kill()
			for code, n := range now {
				if code != "429" && n != before[code] {
					t.Errorf("%d evictions were answered with %s: %s", n-before[code], code, p.Log())
				}
			}
			for _, v := range vms {
				if got := v.get().Status.EvacuationNodeName; got != n.Name || !v.podThere() {
					t.Errorf("VM %s is marked for %q", v.name, got)
				}
			}
			if got := counted(all, "vmgrace_evictions_total", `verdict="marked"`) - marks; got != full {
				t.Errorf("%d marks of %d VMs", got, full)
			}
			t.Logf("%d evictions; by cluster-controller:\n%s", now["429"]-before["429"], since(requests(t), writes))
			tidyMigrations(t)
		})
	}
}

// since returns the requests that were made between two counts, one kind a line.
func since(now, before map[right]int) string {
	var text strings.Builder
	maps.DeleteFunc(now, func(r right, n int) bool { return n == before[r] })
	for r, n := range now {
		fmt.Fprintf(&text, "%d × %s\n", n-before[r], r)
	}
	return text.String()
}
