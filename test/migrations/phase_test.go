//go:build !unit

package migrations

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
)

// Given a VM whose phase the controller writes. When it moves, and its source pod ends before the
// new node is written, then the VMI goes on as Running, on the new node, and its phase follows the
// target pod from then on, over a restart of the controller. Otherwise each move would end the VM,
// as far as the API shows.
func TestThePhaseFollowsTheVM(t *testing.T) {
	s := given(t)
	run := []string{"--controllers=launcher,disruption-budgets,migration"}
	before := controller(t, run...)
	v := s.VMI("vm", "", kubevirt.StrategyLiveMigrate)
	v.Labels = nil
	s.Make(v, "")
	p := s.Launcher(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm"}}, "")
	delete(p.Labels, kubevirt.CreatedByLabel)
	s.Make(p, "")
	s.runsOn("node-a", p)
	is := func(phase kubevirt.VMIPhase, node, pod string) bool {
		now := s.vmi("vm")
		return now.Status.Phase == phase && now.Status.NodeName == node && now.Labels[kubevirt.NodeNameLabel] == node &&
			now.Status.Launcher != nil && now.Status.Launcher.Pod == pod
	}
	kit.Eventually(t, "it runs", func() bool { return is("Running", "node-a", "virt-launcher-vm") })
	s.SetStatus(s.vmi("vm"), `{"conditions":[{"type":"LiveMigratable","status":"True"}]}`)
	kit.Eventually(t, "its budget", func() bool { return s.keeps("vm") == 1 })
	m := s.scheduled(s.Migrate("move", "vm"), "node-b")
	target := s.target(m)
	if target.Annotations["vmgrace.io/incoming"] != string(m.UID) || target.Labels[kubevirt.CreatedByLabel] != string(v.UID) {
		t.Errorf("target pod %+v", target.ObjectMeta)
	}
	s.to(m, kubevirt.MigrationRunning)
	before.Kill()
	s.SetStatus(s.launcher("vm"), `{"phase":"Succeeded"}`)
	controller(t, run...)
	s.says("node-b", kubevirt.TargetArrived, m)
	if now := s.vmi("vm"); now.Status.Phase != kubevirt.VMIRunning {
		t.Errorf("%s while it moves", now.Status.Phase)
	}
	s.says("node-a", kubevirt.SourceGone, m)
	s.says("node-b", kubevirt.TargetRunning, m)
	s.comes(m, kubevirt.MigrationSucceeded)
	kit.Eventually(t, "its phase is about the target pod", func() bool { return is("Running", "node-b", target.Name) })
	kit.Must(t, s.Delete(t.Context(), s.launcher("vm"), client.GracePeriodSeconds(0)))
	s.letGo(m)
	if !is("Running", "node-b", target.Name) {
		t.Errorf("the source pod is gone, and the VMI is %+v", s.vmi("vm").Status)
	}
	s.SetStatus(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.NS, Name: target.Name}}, `{"phase":"Failed"}`)
	kit.Eventually(t, "it has failed there", func() bool { return is("Failed", "node-b", target.Name) })
}
