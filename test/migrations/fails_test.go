//go:build !unit

package migrations

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// placed makes a VM with a budget, and a migration of it that is Scheduled.
func placed(t *testing.T) (scene, *kubevirt.VirtualMachineInstanceMigration) {
	t.Helper()
	s := given(t)
	s.vm("vm")
	controller(t)
	kit.Eventually(t, "its budget", func() bool { return s.keeps("vm") == 1 })
	m := s.Migrate("move", "vm")
	return s, s.scheduled(m, "node-b")
}

func TestAFailureLeavesTheVMWhereItIs(t *testing.T) {
	for name, c := range map[string]struct {
		fails func(scene, *kubevirt.VirtualMachineInstanceMigration)
		words string
	}{
		"the target refuses it": {func(s scene, m *kubevirt.VirtualMachineInstanceMigration) {
			s.to(m, kubevirt.MigrationPreparingTarget)
			s.says("node-b", kubevirt.TargetAbsent, m, "the CPU lacks avx512f")
		}, "the CPU lacks avx512f"},
		"the guest stays": {func(s scene, m *kubevirt.VirtualMachineInstanceMigration) {
			s.to(m, kubevirt.MigrationRunning)
			s.says("node-a", kubevirt.SourceRunning, m, "it dirties memory faster than the bandwidth")
			s.says("node-b", kubevirt.TargetAbsent, m)
		}, "it dirties memory faster"},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := placed(t)
			c.fails(s, m)
			s.failed(m, c.words)
			s.stays(m)
		})
	}
}

func TestAMigrationThatIsDeletedBeforeItRunsLeavesNothing(t *testing.T) {
	s, m := placed(t)
	s.to(m, kubevirt.MigrationPreparingTarget)
	kit.Must(t, s.Delete(s.Context(), m))
	kit.Eventually(t, "it is cancelled", func() bool { now := s.read(m); return now == nil || now.Final() })
	if s.read(m) != nil {
		s.says("node-b", kubevirt.TargetAbsent, m)
	}
	kit.Eventually(t, "it is gone", func() bool { return s.read(m) == nil })
	s.stays(m)
}

// Given two migrations that run. When one launcher pod is deleted with 200 s and the other
// one with 20 s, then the first migration ends, because the source's agent lets the
// shutdown wait for it, and the second one is aborted. Otherwise a VM that had time to move
// would be shut down.
func TestADeletedLauncherWithTimeLetsItsMigrationEnd(t *testing.T) {
	s, m := placed(t)
	s.to(m, kubevirt.MigrationRunning)
	s.vm("hurried")
	other := s.Migrate("hurry", "hurried")
	other = s.scheduled(other, "node-b")
	s.to(other, kubevirt.MigrationRunning)
	for vm, seconds := range map[string]int64{"vm": 200, "hurried": 20} {
		kit.Must(t, s.Delete(s.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.NS, Name: "virt-launcher-" + vm}}, client.GracePeriodSeconds(seconds)))
	}
	kit.Eventually(t, "the one without time is aborted", func() bool { return s.read(other).Status.MigrationState.AbortRequested })
	s.says("node-a", kubevirt.SourceGone, m)
	s.says("node-b", kubevirt.TargetRunning, m)
	if now := s.comes(m, kubevirt.MigrationSucceeded); now.Status.MigrationState.AbortRequested {
		t.Errorf("aborted: %s", now.Status.MigrationState.FailureReason)
	}
	if why := s.read(other).Status.MigrationState.FailureReason; why != "launcher pod virt-launcher-hurried is being shut down" {
		t.Error(why)
	}
}

func TestAMigrationThatCannotBeFailsWithOneLine(t *testing.T) {
	s := given(t)
	controller(t)
	s.failed(s.Migrate("of-nobody", "gone"), "gone")
	s.failed(s.Migrate("of-another-namespace", "other/vm"), "its own namespace")
	s.failed(s.Migrate("of-no-name", ".."), "no VirtualMachineInstance")
	s.vm("vm")
	s.SetStatus(s.vmi("vm"), `{"conditions":[{"type":"LiveMigratable","status":"False","reason":"HostDevice","message":"a host device"}]}`)
	s.failed(s.Migrate("of-a-device", "vm"), "a host device")
}

func TestAnAgentWritesItsSideOfItsNodesMigrationsAndNothingElse(t *testing.T) {
	s, m := placed(t)
	for name, c := range map[string]struct {
		node   string
		change func(*kubevirt.VirtualMachineInstanceMigration)
	}{
		"of other nodes": {"node-c", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.TargetState = kubevirt.TargetRunning
		}},
		"the source's word": {"node-b", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.SourceState = kubevirt.SourceGone
		}},
		"the target's word": {"node-a", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.TargetState = kubevirt.TargetRunning
		}},
		"another node": {"node-b", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.SourceNode = "node-c"
		}},
		"its pause": {"node-b", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.Mode, m.Status.MigrationState.PauseTimestamp = kubevirt.MigrationPaused, new(metav1.NowMicro())
		}},
		"its resumption": {"node-a", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.MigrationState.ResumeTimestamp = new(metav1.NowMicro())
		}},
		"its end": {"node-b", func(m *kubevirt.VirtualMachineInstanceMigration) { m.Status.Phase = kubevirt.MigrationSucceeded }},
		"a phase that is not its own": {"node-a", func(m *kubevirt.VirtualMachineInstanceMigration) {
			m.Status.Phase = kubevirt.MigrationPreparingTarget
		}},
	} {
		if err := s.tryAgent(c.node, m, c.change); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "agent") {
			t.Errorf("%s: %v, want a refusal by the policy", name, err)
		}
	}
	if err := shared.agents["node-b"].Status().Patch(s.Context(), s.vmi("vm"), rig.Merge(`{"status":{"nodeName":"node-b"}}`)); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		t.Errorf("a VMI of another node: %v", err)
	}
	if err := shared.agents["node-a"].Status().Patch(s.Context(), s.vmi("vm"), rig.Merge(`{"status":{"nodeName":"node-b"}}`)); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		t.Errorf("a VMI's node: %v", err)
	}
	// When an agent writes what it may, then the policy lets it through.
	s.to(m, kubevirt.MigrationRunning)
	s.agent("node-a", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		m.Status.MigrationState.Mode, m.Status.MigrationState.PauseTimestamp = kubevirt.MigrationPaused, new(metav1.NowMicro())
	})
	s.agent("node-b", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		m.Status.MigrationState.TargetState, m.Status.MigrationState.ResumeTimestamp = kubevirt.TargetRunning, new(metav1.NowMicro())
	})
}
