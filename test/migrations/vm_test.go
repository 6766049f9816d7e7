//go:build !unit

package migrations

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// scene is a namespace of a test's own.
type scene struct {
	*testing.T
	rig.Space
}

func given(t *testing.T) scene { t.Helper(); return scene{t, shared.Namespace(t)} }

// vm makes a VM that runs on node-a, with its launcher pod.
func (s scene) vm(name string) *kubevirt.VirtualMachineInstance {
	s.Helper()
	v := s.VMI(name, "node-a", kubevirt.StrategyLiveMigrate)
	s.Make(v, `{"phase":"Running","nodeName":"node-a","unknown":"kept","conditions":[{"type":"LiveMigratable","status":"True"}]}`)
	p := s.Launcher(v, "node-a")
	p.Annotations["of.the/owner"] = "kept"
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance",
		Name: name, UID: v.UID, Controller: new(true), BlockOwnerDeletion: new(true)}}
	s.Make(p, rig.PodRuns)
	return v
}

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

// read reads a migration anew and returns nil if it is gone.
func (s scene) read(m *kubevirt.VirtualMachineInstanceMigration) *kubevirt.VirtualMachineInstanceMigration {
	s.Helper()
	return rig.Find[kubevirt.VirtualMachineInstanceMigration](s.Space, m.Name)
}

func (s scene) vmi(name string) *kubevirt.VirtualMachineInstance {
	s.Helper()
	return rig.Read[kubevirt.VirtualMachineInstance](s.Space, name)
}

// comes waits until a migration has the phase. Another final phase ends the test.
func (s scene) comes(m *kubevirt.VirtualMachineInstanceMigration, phase kubevirt.MigrationPhase) *kubevirt.VirtualMachineInstanceMigration {
	s.Helper()
	var now *kubevirt.VirtualMachineInstanceMigration
	kit.Eventually(s.T, fmt.Sprintf("migration %s becomes %s", m.Name, phase), func() bool {
		if now = s.read(m); now == nil {
			return false
		}
		if now.Final() && now.Status.Phase != phase {
			s.Fatalf("migration %s is %s: %s", m.Name, now.Status.Phase, migration.StateOf(now).FailureReason)
		}
		return now.Status.Phase == phase
	})
	return now
}

// target returns a migration's target pod, nil while there is none.
func (s scene) target(m *kubevirt.VirtualMachineInstanceMigration) *corev1.Pod {
	s.Helper()
	return rig.Find[corev1.Pod](s.Space, migration.TargetPodName(m.Spec.VMIName, string(m.UID)))
}

// scheduled plays the scheduler and the kubelet of the target's node, and waits until the
// migration is Scheduled.
func (s scene) scheduled(m *kubevirt.VirtualMachineInstanceMigration, node string) *kubevirt.VirtualMachineInstanceMigration {
	s.Helper()
	p := s.comesTarget(m)
	if n := s.keeps(m.Spec.VMIName); n != 2 {
		s.Errorf("the budget keeps %d when the target pod is there, want 2", n)
	}
	s.runsOn(node, p)
	return s.comes(m, kubevirt.MigrationScheduled)
}

// runsOn binds a pod to a node, where it runs.
func (s scene) runsOn(node string, p *corev1.Pod) {
	s.Helper()
	kit.Must(s.T, s.SubResource("binding").Create(s.Context(), p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
	s.SetStatus(p, rig.PodRuns)
}

// keeps returns how many pods the VM's budget keeps, 0 without a budget.
func (s scene) keeps(vmi string) int {
	s.Helper()
	b := rig.Find[policyv1.PodDisruptionBudget](s.Space, "kubevirt-disruption-budget-"+string(s.vmi(vmi).UID))
	if b == nil {
		return 0
	}
	return b.Spec.MinAvailable.IntValue()
}

// agent changes a migration's status as the agent of a node.
func (s scene) agent(node string, m *kubevirt.VirtualMachineInstanceMigration, change func(*kubevirt.VirtualMachineInstanceMigration)) {
	s.Helper()
	for {
		now := s.read(m)
		before := now.DeepCopy()
		change(now)
		if now.Status.Phase != before.Status.Phase {
			now.Status.PhaseTransitionTimestamps = before.Transitions(now.Status.Phase, metav1.Now().Time)
		}
		err := shared.agents[node].Status().Patch(s.Context(), now, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if !apierrors.IsConflict(err) {
			kit.Must(s.T, err)
			return
		}
	}
}

// to plays the agents until a scheduled migration has the phase.
func (s scene) to(m *kubevirt.VirtualMachineInstanceMigration, phase kubevirt.MigrationPhase) {
	s.Helper()
	if phase == kubevirt.MigrationScheduled {
		return
	}
	s.agent("node-b", m, func(m *kubevirt.VirtualMachineInstanceMigration) { m.Status.Phase = kubevirt.MigrationPreparingTarget })
	if phase == kubevirt.MigrationPreparingTarget {
		return
	}
	s.agent("node-b", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		m.Status.Phase, m.Status.MigrationState.TargetNodeAddress = kubevirt.MigrationTargetReady, "192.0.2.2:9470"
	})
	if phase == kubevirt.MigrationTargetReady {
		return
	}
	s.agent("node-a", m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		now := metav1.Now()
		m.Status.Phase, m.Status.MigrationState.StartTimestamp = kubevirt.MigrationRunning, &now
		m.Status.MigrationState.Progress = &kubevirt.MigrationProgress{Percent: 40, RemainingMiB: 96, TotalMiB: 160}
	})
}

// says plays the agent of a node: it reports its word, and why the migration failed. The
// agent of node-a is the source's, any other one is the target's.
func (s scene) says(node, word string, m *kubevirt.VirtualMachineInstanceMigration, why ...string) {
	s.Helper()
	s.agent(node, m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		if node == "node-a" {
			m.Status.MigrationState.SourceState = word
		} else {
			m.Status.MigrationState.TargetState = word
		}
		for _, reason := range why {
			m.Status.MigrationState.FailureReason = reason
		}
	})
}
