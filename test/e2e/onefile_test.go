package e2e

import (
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// Given deploy/examples/vm.yaml as shipped, but for its namespace. When it is applied, twice, then
// the scheduler places the VM, the VMI says where it runs, and that node's agent guards it with
// the VMI's grace period and UID. When it is deleted, the guest is shut down and all of it is gone.
func TestOneFileMakesAVM(t *testing.T) {
	w := given(t)
	w.controller()
	file := w.example("vm.yaml", "namespace: default", "namespace: "+namespace)
	w.afterwards("delete", "-n", namespace, "vmi/vm-example", "pod/virt-launcher-vm-example", "--ignore-not-found", "--grace-period=1", "--wait=false")
	w.KubectlApply(w, file)
	node.Eventually(w, 6*soon, func() bool { return w.get("vmi", "vm-example", "{.status.phase}") == "Running" }, "the VMI does not run")
	on := w.get("vmi", "vm-example", "{.status.nodeName}")
	if pod := w.get("pod", "virt-launcher-vm-example", "{.spec.nodeName}"); on != pod {
		t.Errorf("status %q, pod %q", on, pod)
	}
	node.Eventually(w, soon, func() bool { return w.get("vmi", "vm-example", `{.metadata.labels.kubevirt\.io/nodeName}`) == on }, "the label does not follow the status")
	uid := w.get("vmi", "vm-example", "{.metadata.uid}")
	at := w.Nodes[0]
	if at.Name != on {
		at = w.Nodes[1]
	}
	node.Eventually(w, 2*soon, func() bool { r := w.recordOf(at, "vm-example"); return r.UID == uid && r.GracePeriodSeconds == 20 }, "the agent does not guard it as the VMI's")
	node.Eventually(w, 6*soon, func() bool {
		out, err := w.TryKubectl(t.Context(), "", "logs", "-n", namespace, "virt-launcher-vm-example")
		return err == nil && strings.Contains(out, "vmgrace-guest: up")
	}, "the guest does not boot")
	again, err := w.TryKubectl(t.Context(), file, "apply", "-f", "-")
	if err != nil || strings.Count(again, "unchanged") != 2 {
		t.Errorf("applied again: %v\n%s", err, again)
	}
	w.step("it runs on %s", on)
	if out, err := w.TryKubectl(t.Context(), file, "delete", "-f", "-"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	node.Eventually(w, 2*soon, func() bool {
		return w.find(objects.Query{Kind: "pod", Namespace: namespace, Name: "virt-launcher-vm-example", Path: "{.metadata.name}"}) == ""
	}, "the pod does not go")
	logs := w.Kubectl(w, "logs", "-n", agents, w.agent(at), "--tail=-1")
	if !strings.Contains(logs, `"name":"vm-example"`) || !strings.Contains(logs, "Graceful") {
		t.Errorf("the agent does not say that the guest was shut down:\n%s", logs)
	}
}

func (w *world) recordOf(on *cluster.Node, name string) node.VMStatus {
	w.Helper()
	records, _ := w.records(on)
	for _, r := range records {
		if r.Name == name {
			return r
		}
	}
	return node.VMStatus{}
}
