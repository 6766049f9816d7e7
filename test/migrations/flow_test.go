//go:build !unit

package migrations

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/kit"
)

// Given a VM on node-a with its budget. When the VM is marked, then it moves to node-b: its
// migration has all that the contract names, in the contract's order, and an Event says for
// how long the guest was paused. Otherwise an agent or a client would wait for a field in
// vain.
func TestAMarkedVMMoves(t *testing.T) {
	s := given(t)
	s.vm("vm")
	controller(t)
	kit.Eventually(t, "its budget", func() bool { return s.keeps("vm") == 1 })
	v := s.vmi("vm")
	s.SetStatus(v, `{"evacuationNodeName":"node-a"}`)
	kit.Eventually(t, "its migration", func() bool { return len(s.Migrations()) == 1 })
	m := s.scheduled(&s.Migrations()[0], "node-b")
	p := s.target(m)
	if p.Labels[kubevirt.MigrationJobLabel] != string(m.UID) || p.Annotations["of.the/owner"] != "kept" || p.Spec.Priority != nil && *p.Spec.Priority != 0 ||
		!metav1.IsControlledBy(p, v) || p.Labels[kubevirt.CreatedByLabel] != string(v.UID) {
		t.Errorf("target pod: %+v", p.ObjectMeta)
	}
	anti := p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(anti) != 1 || anti[0].TopologyKey != "kubernetes.io/hostname" || anti[0].LabelSelector.MatchLabels[kubevirt.CreatedByLabel] != string(v.UID) {
		t.Errorf("affinity: %+v", anti)
	}
	state := m.Status.MigrationState
	if m.Labels[migration.SourceNodeLabel] != "node-a" || m.Labels[migration.TargetNodeLabel] != "node-b" ||
		state.SourceNode != "node-a" || state.SourcePod != "virt-launcher-vm" || state.TargetNode != "node-b" || state.TargetPodUID != string(p.UID) ||
		state.VMIUID != string(v.UID) || state.MigrationUID != string(m.UID) || state.Options.CompletionTimeoutPerGiB != 150 || state.Options.PauseAfter != 75 {
		t.Errorf("labels %v, state %+v", m.Labels, state)
	}
	if to := s.vmi("vm").Labels[kubevirt.MigrationTargetLabel]; to != "node-b" {
		t.Errorf("the VMI's target label is %q", to)
	}

	s.to(m, kubevirt.MigrationRunning)
	table := shared.Kubectl(t, "get", "vmim", "-n", s.NS)
	if !strings.Contains(table, "PERCENT") || !strings.Contains(table, "MIB LEFT") || !strings.Contains(table, "40") || !strings.Contains(table, "96") {
		t.Errorf("kubectl get vmim:\n%s", table)
	}
	paused := metav1.NowMicro()
	s.agent("node-a", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		m.Status.MigrationState.Mode, m.Status.MigrationState.PauseTimestamp = kubevirt.MigrationPaused, &paused
	})
	s.says("node-b", kubevirt.TargetArrived, m)
	s.agent("node-b", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		m.Status.MigrationState.ResumeTimestamp = new(metav1.NewMicroTime(paused.Add(4200 * time.Millisecond)))
	})
	s.says("node-a", kubevirt.SourceGone, m)
	s.says("node-b", kubevirt.TargetRunning, m)
	m = s.comes(m, kubevirt.MigrationSucceeded)
	kit.Eventually(t, "an Event says for how long the guest was paused", func() bool {
		return strings.Contains(shared.Kubectl(t, "get", "events", "-n", s.NS, "--field-selector=reason=Migrated"), "it was paused for 4.2s")
	})

	v = s.vmi("vm")
	if v.Status.NodeName != "node-b" || v.Status.EvacuationNodeName != "" || v.Labels[kubevirt.NodeNameLabel] != "node-b" ||
		v.Status.MigrationState == nil || !v.Status.MigrationState.Completed || v.Status.MigrationState.MigrationUID != string(m.UID) {
		t.Errorf("VMI: labels %v, status %+v", v.Labels, v.Status)
	}
	if kept := shared.Kubectl(t, "get", "vmi", "-n", s.NS, "vm", "-o", "jsonpath={.status.unknown}"); kept != "kept" {
		t.Errorf("a field of others is %q", kept)
	}
	for _, phase := range []kubevirt.MigrationPhase{kubevirt.MigrationScheduling, kubevirt.MigrationScheduled, kubevirt.MigrationPreparingTarget,
		kubevirt.MigrationTargetReady, kubevirt.MigrationRunning, kubevirt.MigrationSucceeded} {
		if m.Reached(phase).IsZero() {
			t.Errorf("no time of phase %s: %+v", phase, m.Status.PhaseTransitionTimestamps)
		}
	}
	if !m.Status.MigrationState.Completed || m.Status.MigrationState.EndTimestamp == nil {
		t.Errorf("state %+v", m.Status.MigrationState)
	}
	s.letGo(m)
	shared.Kubectl(t, "delete", "pod", "-n", s.NS, "virt-launcher-vm", "--grace-period=0", "--force")
	kit.Eventually(t, "the budget keeps one again", func() bool { return s.keeps("vm") == 1 })
	if s.target(m) == nil {
		t.Error("the VM's pod is gone")
	}
}

// letGo waits until a migration has no finalizer or is gone, and asserts that its VMI has
// no target label.
func (s scene) letGo(m *kubevirt.VirtualMachineInstanceMigration) {
	s.Helper()
	kit.Eventually(s.T, "migration "+m.Name+" is let go", func() bool {
		now := s.read(m)
		return now == nil || len(now.Finalizers) == 0
	})
	if v := s.vmi(m.Spec.VMIName); v.Labels[kubevirt.MigrationTargetLabel] != "" {
		s.Errorf("the VMI has still label %v", v.Labels)
	}
}

// stays asserts that a failed migration left all as it was, and that a retry begins.
func (s scene) stays(m *kubevirt.VirtualMachineInstanceMigration) {
	s.Helper()
	s.letGo(m)
	if s.target(m) != nil {
		kit.Eventually(s.T, "the target pod goes", func() bool { p := s.target(m); return p == nil || p.DeletionTimestamp != nil })
		_ = s.Delete(s.Context(), s.target(m), client.GracePeriodSeconds(0))
	}
	v := s.vmi("vm")
	if v.Status.NodeName != "node-a" || v.Labels[kubevirt.NodeNameLabel] != "node-a" {
		s.Errorf("the VM is on %q, label %q", v.Status.NodeName, v.Labels[kubevirt.NodeNameLabel])
	}
	kit.Eventually(s.T, "the budget keeps one again", func() bool { return s.keeps("vm") == 1 })
	s.comes(s.Migrate("retry", "vm"), kubevirt.MigrationScheduling)
}

func (s scene) failed(m *kubevirt.VirtualMachineInstanceMigration, words string) {
	s.Helper()
	now := s.comes(m, kubevirt.MigrationFailed)
	if reason := now.Status.MigrationState.FailureReason; !strings.Contains(reason, words) || strings.Contains(reason, "\n") {
		s.Errorf("failureReason %q, want one line with %q", reason, words)
	}
	if !now.Status.MigrationState.Failed || now.Status.MigrationState.EndTimestamp == nil {
		s.Errorf("state %+v", now.Status.MigrationState)
	}
}

// Given a migration that fails and one that succeeds. When the controller is killed in each
// phase of them, then the next controller continues where the killed one ended. Otherwise a
// restart of the controller would leave a migration without an end.
func TestAControllerKilledInAMigrationIsReplaced(t *testing.T) {
	s := given(t)
	v := s.vm("vm")
	c := controller(t)
	kill := func() { c.Kill(); c = controller(t) }
	kit.Eventually(t, "its budget", func() bool { return s.keeps("vm") == 1 })
	c.Kill()
	move := func(name, to string) *kubevirt.VirtualMachineInstanceMigration {
		m := s.Migrate(name, "vm") // Pending
		c = controller(t)
		m = s.comes(m, kubevirt.MigrationScheduling)
		kill()
		m = s.scheduled(m, to)
		kill()
		s.to(m, kubevirt.MigrationRunning)
		return m
	}

	m := move("fails", "node-b")
	kill()
	s.says("node-a", kubevirt.SourceRunning, m, "it stayed")
	s.failed(m, "it stayed")
	c.Kill()
	s.says("node-b", kubevirt.TargetAbsent, m)
	c = controller(t)
	s.letGo(m)
	kit.Eventually(t, "the target pod goes", func() bool { p := s.target(m); return p == nil || p.DeletionTimestamp != nil })
	kit.Must(t, client.IgnoreNotFound(s.Delete(t.Context(), s.target(m), client.GracePeriodSeconds(0))))
	kit.Eventually(t, "the budget keeps one again", func() bool { return s.keeps("vm") == 1 })

	c.Kill()
	m = move("moves", "node-b")
	s.says("node-b", kubevirt.TargetArrived, m)
	kill()
	s.says("node-a", kubevirt.SourceGone, m)
	c.Kill()
	s.says("node-b", kubevirt.TargetRunning, m)
	c = controller(t)
	m = s.comes(m, kubevirt.MigrationSucceeded)
	kill()
	s.letGo(m)
	if now := s.vmi("vm"); now.UID != v.UID || now.Status.NodeName != "node-b" || now.Labels[kubevirt.NodeNameLabel] != "node-b" {
		t.Errorf("VMI: labels %v, status %+v", now.Labels, now.Status)
	}
}
