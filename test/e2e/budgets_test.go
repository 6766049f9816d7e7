package e2e

import (
	"testing"
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
