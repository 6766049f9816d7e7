package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// Given a user's own budget beside the VM's, so that the API server answers an eviction
// with 500. When kubectl vmdrain drains the node without permission to delete local data,
// then the VM is moved: a launcher has no local data. Otherwise such a VM would block the
// drain.
func TestADrainMovesAVMWithTwoBudgets(t *testing.T) {
	w := given(t)
	w.controller()
	v := w.vm(plan{grace: 30, on: w.b})
	w.liveMigratable(v)
	w.Kubectl(t, "label", "pod", "-n", namespace, "virt-launcher-"+v.Name, "app=shop")
	w.KubectlApply(t, `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: users-own, namespace: `+namespace+`}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: shop}}
`)
	w.afterwards("delete", "pdb", "-n", namespace, "users-own", "--ignore-not-found")
	w.afterwards("uncordon", w.b.Name)
	code, log := w.runVMDrain(w.b, func() {}, "--timeout=180s", "--delete-emptydir-data=false")
	if code != 0 {
		t.Fatalf("kubectl vmdrain: exit status %d\n%s", code, log)
	}
	v.moved(w.a)
}

// evict evicts the launcher pod once.
func (v *vm) evict() (said string, err error) {
	eviction := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"virt-launcher-%s","namespace":"%s"}}`, v.Name, namespace)
	return v.w.TryKubectl(v.w.Context(), eviction, "create", "--raw", "/api/v1/namespaces/"+namespace+"/pods/virt-launcher-"+v.Name+"/eviction", "-f", "-")
}

// Given a quota that forbids the VM's budget. When its launcher pod is evicted three times,
// as by kubectl drain, which tries again after 5 s, then each eviction is refused and the
// VM runs on. An Event tells the user that the VM has no budget, and why.
func TestAQuotaOnBudgetsStopsNoVM(t *testing.T) {
	w := given(t)
	w.controller()
	w.Kubectl(t, "create", "quota", "nopdb", "-n", namespace, "--hard=count/poddisruptionbudgets.policy=0")
	w.afterwards("delete", "quota", "-n", namespace, "nopdb", "--ignore-not-found")
	node.Eventually(t, soon, func() bool {
		return w.find(objects.Query{Kind: "quota", Namespace: namespace, Name: "nopdb", Path: "{.status.hard}"}) != ""
	}, "the quota is not in force")
	v := w.vm(plan{grace: 30, on: w.b})
	w.Kubectl(t, "patch", "vmi", "-n", namespace, v.Name, "--type=merge", "-p", `{"spec":{"evictionStrategy":"External"}}`)
	for range 3 {
		said, err := v.evict()
		if text := fmt.Sprint(said, err); err == nil || !strings.Contains(text, "Eviction triggered evacuation of VMI") {
			t.Fatalf("the eviction was answered %s", text)
		}
	}
	w.untouched(v)
	node.Eventually(t, soon, func() bool {
		return strings.Contains(w.find(objects.Query{Kind: "event", Namespace: namespace, Fields: "reason=NoDisruptionBudget,involvedObject.name=" + v.Name,
			Path: "{.items[*].message}"}), "exceeded quota: nopdb")
	}, "no Event says that %s has no budget, and why", v.Name)
}
