//go:build !unit

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

// Given a node with 16 VMs that can be moved and one that cannot. When an operator asks kubectl
// for the policy, then its columns say who would be moved in time, and an Event says what to
// change. When the node gets a NoExecute taint, then an Event on the node names the VM that
// stays. Otherwise only the shutdowns would tell.
func TestKubectlSaysBeforehandWhoANoExecuteTaintMoves(t *testing.T) {
	w := given(t)
	w.node("n1")
	w.node("n2")
	kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "kubevirt"}}
	kv.Spec.Configuration.DeveloperConfiguration = &kubevirt.DeveloperConfiguration{FeatureGates: []string{"NoExecuteTaintEvictionLiveMigration"}}
	w.make(kv)
	vm := func(name, conditions string) {
		w.VM(name, "n1", kubevirt.StrategyLiveMigrate, fmt.Sprintf(`{"phase":"Running","nodeName":"n1","conditions":[%s]}`, conditions), func(p *corev1.Pod) {
			p.Spec.TerminationGracePeriodSeconds = new(int64(210))
			p.Annotations["vmgrace.io/hold-for"] = "DeletionByTaintManager"
			p.Annotations["vmgrace.io/shutdown-reserve-seconds"] = "60"
			p.Annotations["vmgrace.io/migration-allowance-seconds"] = "150"
		})
	}
	for i := range 16 {
		vm(fmt.Sprintf("vm-%d", i), migratable)
	}
	vm("stays", "")
	w.make(&v1alpha1.EvacuationPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name}})
	w.controller("--leader-elect=false", "--controllers=estimate")

	table := ""
	w.eventually("the columns have the numbers", func() bool {
		table = api.Kubectl(w, "get", "evacuationpolicy")
		return strings.Contains(strings.Join(strings.Fields(table), " "), "IN TIME LATE NOT MOVABLE AGE default 14 2 1 ")
	})
	t.Log("\n" + table)
	nodes := api.Kubectl(w, "get", "evacuationpolicy", "default", "-o", "jsonpath={.status.noExecute.nodes}")
	if want := `[{"inTime":14,"late":2,"name":"n1","notMovable":1,"vmis":17,"why":"1 NotMigratable"}]`; nodes != want {
		t.Errorf("nodes %s, want %s", nodes, want)
	}
	w.event("default", "TooManyVMsPerNode", "spec.parallelHeldMigrations of 3 would do")

	api.Kubectl(w, "taint", "node", "n1", "broken=1:NoExecute")
	w.event("n1", "NoExecuteTaint", "broken:NoExecute: 14 of 17 VMs are expected to be moved in time, 2 not")
	w.event("n1", "NoExecuteTaint", "1 cannot be moved (1 NotMigratable): "+w.ns+"/stays")
	if said := api.Kubectl(w, "describe", "node", "n1"); !strings.Contains(said, "broken:NoExecute: 14 of 17 VMs") {
		t.Errorf("kubectl describe node does not say so:\n%s", said)
	}
}
