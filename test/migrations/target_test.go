//go:build !unit

package migrations

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// comesTarget waits for a migration's target pod.
func (s scene) comesTarget(m *kubevirt.VirtualMachineInstanceMigration) (p *corev1.Pod) {
	s.Helper()
	kit.Eventually(s.T, "the target pod of "+m.Name+" is made", func() bool { p = s.target(m); return p != nil })
	return p
}

func (s scene) launcher(vm string) *corev1.Pod {
	s.Helper()
	return rig.Read[corev1.Pod](s.Space, "virt-launcher-"+vm)
}

func TestARetryPrefersAnotherNode(t *testing.T) {
	s, m := placed(t)
	s.to(m, kubevirt.MigrationPreparingTarget)
	s.says("node-b", kubevirt.TargetAbsent, m, "no")
	s.failed(m, "no")
	s.stays(m) // a migration called retry has begun
	p := s.comesTarget(rig.Read[kubevirt.VirtualMachineInstanceMigration](s.Space, "retry"))
	terms := p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 2 || terms[0].Preference.MatchExpressions[0].Key != migration.TakesMigrationsLabel || terms[1].Preference.MatchFields[0].Values[0] != "node-b" {
		t.Errorf("preferred: %+v", terms)
	}
}

// Given a source pod with a container that outlives the VM, which nobody else ends. When
// the migration has succeeded, then the controller deletes the source pod with 30 s.
// Otherwise the pod would stay on the node, and its drain would not end.
func TestASourcePodThatStaysIsDeleted(t *testing.T) {
	s, m := placed(t)
	s.to(m, kubevirt.MigrationRunning)
	s.says("node-b", kubevirt.TargetRunning, m)
	s.says("node-a", kubevirt.SourceGone, m)
	s.comes(m, kubevirt.MigrationSucceeded)
	kit.Eventually(t, "the source pod is deleted", func() bool { return s.launcher("vm").DeletionTimestamp != nil })
	if p := s.launcher("vm"); *p.DeletionGracePeriodSeconds != 30 {
		t.Errorf("with %d s", *p.DeletionGracePeriodSeconds)
	}
	if p := s.target(m); p == nil || p.DeletionTimestamp != nil {
		t.Error("the VM's pod is deleted")
	}
	kit.Must(t, s.Delete(t.Context(), s.launcher("vm"), client.GracePeriodSeconds(0)))
	kit.Eventually(t, "the budget keeps one again", func() bool { return s.keeps("vm") == 1 })

	s.SetStatus(s.vmi("vm"), `{"phase":"Succeeded"}`)
	kit.Eventually(t, "the pod of a VM that has ended is deleted", func() bool { return s.target(m).DeletionTimestamp != nil })
}

// Given a limit of two migrations at a time from node-a, and two migrations whose target
// pods fit on no node. When others follow, then they go ahead, and a migration that is
// placed late waits for a slot. Otherwise two VMs that fit on no node would block a whole
// drain.
func TestWhoFitsNowhereHoldsUpNobody(t *testing.T) {
	s := given(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.vm(name)
	}
	controller(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		kit.Eventually(t, "the budget of "+name, func() bool { return s.keeps(name) == 1 })
	}
	one := s.comes(s.Migrate("m-a", "a"), kubevirt.MigrationScheduling)
	two := s.comes(s.Migrate("m-b", "b"), kubevirt.MigrationScheduling)
	three, four, five := s.Migrate("m-c", "c"), s.Migrate("m-d", "d"), s.Migrate("m-e", "e")
	for _, m := range []*kubevirt.VirtualMachineInstanceMigration{one, two} {
		s.comesTarget(m)
		if now := s.read(three); now.Status.Phase != "" && now.Status.Phase != kubevirt.MigrationPending {
			t.Errorf("a third begins beside two: %s", now.Status.Phase)
		}
	}
	for _, m := range []*kubevirt.VirtualMachineInstanceMigration{one, two} {
		s.SetStatus(s.comesTarget(m), `{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/3 nodes"}]}`)
	}
	s.scheduled(three, "node-b")
	s.scheduled(four, "node-b")
	// The first one is placed at last and has no slot yet. The fifth has none either.
	s.runsOn("node-b", s.comesTarget(one))
	s.to(three, kubevirt.MigrationPreparingTarget)
	s.says("node-b", kubevirt.TargetAbsent, three, "no")
	s.failed(three, "no")
	s.comes(one, kubevirt.MigrationScheduled)
	if now := s.read(five); now.Status.Phase != "" && now.Status.Phase != kubevirt.MigrationPending {
		t.Errorf("the fifth is %s beside two", now.Status.Phase)
	}
}
