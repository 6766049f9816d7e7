package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

const outOfService = "node.kubernetes.io/out-of-service"

// crash takes a node away until the test ends: its kubelet, agent, libvirtd, guests and containers
// are killed at once.
func (w *world) crash(n *cluster.Node) {
	w.Helper()
	w.restore(func(ctx context.Context) error {
		if err := w.kubectl(ctx, "taint", "node", n.Name, outOfService+"-"); err != nil {
			w.Logf("the taint: %v", err)
		}
		if err := n.Recover(ctx); err != nil {
			return err
		}
		return w.agentsReady(ctx)
	})
	if err := n.Crash(w.Context()); err != nil {
		w.Fatalf("NOT RUN on this cluster: needs a node that may be killed: %v", err)
	}
	w.Kubectl(w, "wait", "node", n.Name, "--for=condition=Ready=Unknown", "--timeout="+(2*soon).String())
	w.step("%s is dead", n.Name)
}

// Given two guests that are sent, one from a node and one to it. When that node dies, then the one
// that it takes in stays where it is, and the migration of the other one says who has to act. When
// the node is declared dead, then nothing of either migration is left. Otherwise they would hold
// their slots and their namespace for ever.
func TestMigrationsOfADeadNodeEndOnceItIsFenced(t *testing.T) {
	w := given(t)
	w.controller()
	w.KubectlApply(t, `
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: vmgrace, namespace: `+agents+`}
spec: {configuration: {migrations: {bandwidthPerMigration: 1Mi}}}
`)
	w.afterwards("delete", "kubevirt", "vmgrace", "-n", agents, "--ignore-not-found")
	all := w.vms(plan{grace: 10, on: w.b}, plan{grace: 10, on: w.a})
	w.liveMigratable(all...)
	leaving, coming := all[0], all[1]
	for _, v := range all {
		w.KubectlApply(t, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: `+v.Name+`, namespace: `+namespace+`}
spec: {vmiName: `+v.Name+`}
`)
		w.afterwards("delete", "vmim", "-n", namespace, v.Name, "--ignore-not-found")
	}
	for _, v := range all {
		w.Kubectl(t, "wait", "vmim", "-n", namespace, v.Name, "--for=jsonpath={.status.migrationState.progress.percent}", "--timeout=90s")
	}
	w.step("both are sent")

	w.crash(w.b)
	node.Eventually(t, time.Minute, func() bool { return strings.HasPrefix(coming.migrations(), "Failed ") }, "the guest that %s takes in: %s", w.b.Name, coming.migrations())
	if coming.Gone(t) {
		t.Errorf("the guest that was sent to %s has ended", w.b.Name)
	}
	node.Eventually(t, soon, func() bool {
		said := leaving.vmi(`{.status.conditions[?(@.type=="MigrationUndecided")].message}`)
		return strings.Contains(said, "kubectl taint nodes "+w.b.Name+" "+outOfService)
	}, "nobody says who has to act: %s", leaving.vmi("{.status.conditions}"))
	if got := leaving.migrations(); !strings.HasPrefix(got, "Running ") {
		t.Errorf("without a proof the migration from %s is %s", w.b.Name, got)
	}

	w.Kubectl(t, "taint", "node", w.b.Name, outOfService+"=nodeshutdown:NoExecute")
	for _, v := range all {
		node.Eventually(t, time.Minute, func() bool {
			return w.get("vmim", v.Name, "{.status.phase} {.metadata.finalizers}") == "Failed"
		}, "something is left of the migration of %s: %s", v.Name, w.get("vmim", v.Name, "{.status}"))
	}
	if why := w.get("vmim", leaving.Name, "{.status.migrationState.failureReason}"); !strings.Contains(why, "was fenced") {
		t.Errorf("the migration from %s failed: %s", w.b.Name, why)
	}
	w.step("both have ended")
	coming.runs()
}
