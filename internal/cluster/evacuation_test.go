//go:build !unit

package cluster_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

func (w world) evacuation(v *kubevirt.VirtualMachineInstance) *kubevirt.VirtualMachineInstanceMigration {
	w.Helper()
	var found *kubevirt.VirtualMachineInstanceMigration
	w.eventually("a migration of "+v.Name, func() bool { found = w.unfinished(v); return found != nil })
	return found
}

func (w world) unfinished(v *kubevirt.VirtualMachineInstance) *kubevirt.VirtualMachineInstanceMigration {
	w.Helper()
	for _, m := range w.migrations() {
		if m.Spec.VMIName == v.Name && !m.Final() {
			return &m
		}
	}
	return nil
}

// evictionRequested waits until the VMI's condition has this reason, or is gone if reason
// is "".
func (w world) evictionRequested(v *kubevirt.VirtualMachineInstance, reason string) {
	w.Helper()
	w.eventually("condition EvictionRequested of "+v.Name+" has reason "+reason, func() bool {
		c := w.read(v).Condition(kubevirt.EvictionRequested)
		return c == nil && reason == "" || c != nil && c.Status == "True" && c.Reason == reason
	})
}

func (w world) phase(m *kubevirt.VirtualMachineInstanceMigration, p string) {
	w.Helper()
	w.must(w.Status().Patch(w.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"`+p+`"}}`))))
}

func (w world) cordon(node string, yes bool) {
	w.Helper()
	word := "uncordon"
	if yes {
		word = "cordon"
	}
	api.Kubectl(w, word, node)
}

func TestMarksBecomeMigrations(t *testing.T) {
	w := given(t)
	w.node("n1")
	w.node("dead")
	w.ready("dead", corev1.ConditionUnknown)
	live := w.vm("live", "n1", kubevirt.StrategyLiveMigrate, migratable)
	external := w.vm("external", "n1", kubevirt.StrategyExternal, migratable)
	pinned := w.vm("pinned", "n1", kubevirt.StrategyLiveMigrate, `{"type":"LiveMigratable","status":"False","message":"a host device"}`)
	lost := w.vm("lost", "dead", kubevirt.StrategyLiveMigrate, migratable)
	w.alone()

	for _, v := range []*kubevirt.VirtualMachineInstance{live, external, pinned, lost} {
		w.mark(v)
	}
	m := w.evacuation(live)
	if m.GenerateName != "kubevirt-evacuation-" || m.Annotations["kubevirt.io/evacuationMigration"] != "n1" ||
		m.Annotations["vmgrace.io/evacuation-cause"] != "Eviction" || *m.Spec.Priority != "system-critical" {
		t.Errorf("migration: %+v", m)
	}
	w.evictionRequested(live, "Migrating")
	w.evictionRequested(external, "External")
	w.evictionRequested(pinned, "NotMigratable")
	w.evictionRequested(lost, "NodeNotReady")
	w.event("pinned", "NotMigratable", "a host device")
	w.event("lost", "NodeNotReady", "dead is not Ready")
	if n := len(w.migrations()); n != 1 {
		t.Errorf("%d migrations, want one", n)
	}
	if c := api.Kubectl(t, "get", "vmi", "-n", w.ns, "live", "-o", "jsonpath={.status.conditions[0].unknownField}"); c != "kept" {
		t.Errorf("a field of another condition is %q", c)
	}
	pod := &corev1.Pod{}
	w.eventually("the launcher has the descheduler's annotations", func() bool {
		w.must(w.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: "virt-launcher-live"}, pod))
		_, only := pod.Annotations["descheduler.alpha.kubernetes.io/request-evict-only"]
		_, now := pod.Annotations["descheduler.alpha.kubernetes.io/eviction-in-progress"]
		return only && now
	})

	// No node takes the target pod.
	const target = "virt-launcher-live-target"
	w.launcher(live, target, "")
	api.Kubectl(t, "patch", "pod", "-n", w.ns, target, "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/2 nodes are available"}]}}`)
	w.evictionRequested(live, "NoRoom")
	w.event("live", "NoRoom", "0/2 nodes are available")
	api.Kubectl(t, "delete", "pod", "-n", w.ns, target, "--grace-period=0", "--force")
	w.evictionRequested(live, "Migrating")

	// The node is Ready again, so the VM can move.
	w.ready("dead", corev1.ConditionTrue)
	w.evacuation(lost)
	w.evictionRequested(lost, "Migrating")

	// A failure is followed by a wait. Without the mark the condition goes.
	w.phase(m, "Failed")
	w.evictionRequested(live, "Backoff")
	w.status(live, `{"evacuationNodeName":null}`)
	w.evictionRequested(live, "")
}

func TestADrainTaintIsAMarkOfAllVMs(t *testing.T) {
	w := given(t)
	w.node("n1")
	live := w.vm("live", "n1", kubevirt.StrategyLiveMigrate, migratable)
	w.vm("none", "n1", kubevirt.StrategyNone, migratable)
	w.vm("external", "n1", kubevirt.StrategyExternal, migratable)
	bare := w.VMI("bare", "n1", kubevirt.StrategyLiveMigrate)
	w.make(bare) // without a status
	w.launcher(bare, "virt-launcher-bare", "n1")
	w.alone()
	w.taints("n1", "kubevirt.io/drain")
	w.evacuation(live)
	w.evictionRequested(live, "Migrating")
	w.evictionRequested(bare, "NotMigratable")
	if n := len(w.migrations()); n != 1 {
		t.Errorf("%d migrations, want one", n)
	}
	w.taints("n1")
	w.eventually("it is withdrawn", func() bool { return w.unfinished(live) == nil })
	w.evictionRequested(live, "")
}

// Given eight marked VMs. When the leader is killed in the middle of them, then each VM has
// one migration. Otherwise a VM would stay on its node, or two migrations would move it.
func TestTheNextLeaderMakesEachMigrationOnce(t *testing.T) {
	w := given(t)
	w.node("n1")
	first := w.controller()
	var all []*kubevirt.VirtualMachineInstance
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		all = append(all, w.vm(name, "n1", kubevirt.StrategyLiveMigrate, migratable))
	}
	w.keeps(all[len(all)-1], 1)
	w.controller()
	for i, v := range all {
		w.mark(v)
		if i == len(all)/2 {
			first.Kill()
		}
	}
	for _, v := range all {
		w.evictionRequested(v, "Migrating")
	}
	of := map[string]int{}
	for _, m := range w.migrations() {
		of[m.Spec.VMIName]++
	}
	for _, v := range all {
		if of[v.Name] != 1 {
			t.Errorf("%s has %d migrations", v.Name, of[v.Name])
		}
	}
}

// Given a VM that has ended, and one whose budget somebody has deleted, while no controller ran. Then the
// next one deletes the launcher that stays, and makes the budget. It hears nothing of what happened to
// their pods and budgets: it looks at each VM.
func TestWhatNoControllerHasSeenIsSeenAtTheStart(t *testing.T) {
	w := given(t)
	ended := w.vm("ended", "n1", kubevirt.StrategyNone, "")
	live := w.vm("live", "n1", kubevirt.StrategyLiveMigrate, migratable)
	start := func() *node.Process { return w.controller("--leader-elect=false", "--controllers=migration") }
	p := start()
	w.keeps(live, 1)
	p.Kill()
	w.status(ended, `{"phase":"Succeeded"}`)
	b, _ := w.of(live)
	w.must(w.Delete(w.Context(), b))
	start()
	w.keeps(live, 1)
	w.eventually("the launcher of "+ended.Name+" is deleted", func() bool {
		return rig.Read[corev1.Pod](w.Space, "virt-launcher-ended").DeletionTimestamp != nil
	})
}
