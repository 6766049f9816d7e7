//go:build !unit

package migrations

import (
	"context"
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/migration"
	"github.com/vmgrace/vmgrace/test/kit"
)

func authenticationToken(pod *corev1.Pod) *authenticationv1.TokenRequest {
	token := &authenticationv1.TokenRequest{}
	if pod != nil {
		token.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	return token
}

// scene is a namespace of a test's own.
type scene struct {
	*testing.T
	client.Client
	ns string
}

func given(t *testing.T) scene {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}
	kit.Must(t, shared.objects.Create(t.Context(), ns))
	s := scene{t, shared.objects, ns.Name}
	t.Cleanup(func() { s.tidy() })
	return s
}

// tidy takes away what would count for the limits of other tests.
func (s scene) tidy() {
	ctx := context.Background()
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := s.List(ctx, &all, client.InNamespace(s.ns)); err != nil {
		s.Errorf("tidy: %v", err)
	}
	for i := range all.Items {
		m := &all.Items[i]
		_ = s.Patch(ctx, m, merge(`{"metadata":{"finalizers":null}}`))
		_ = s.Delete(ctx, m)
	}
	for _, o := range []client.Object{&kubevirt.VirtualMachineInstance{}, &corev1.Pod{}} {
		if err := s.DeleteAllOf(ctx, o, client.InNamespace(s.ns), client.GracePeriodSeconds(0)); err != nil {
			s.Errorf("tidy: %v", err)
		}
	}
}

// vm makes a VM that runs on node-a, marked, with its launcher.
func (s scene) vm(name string) *kubevirt.VirtualMachineInstance {
	s.Helper()
	strategy := kubevirt.StrategyLiveMigrate
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name, Labels: map[string]string{kubevirt.NodeNameLabel: "node-a"}}}
	v.Spec.EvictionStrategy = &strategy
	kit.Must(s.T, s.Create(s.Context(), v))
	s.vmiStatus(v, `{"phase":"Running","nodeName":"node-a","unknown":"kept","conditions":[{"type":"LiveMigratable","status":"True"}]}`)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "virt-launcher-" + name,
			Labels:      map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: string(v.UID)},
			Annotations: map[string]string{kubevirt.DomainAnnotation: name, "of.the/owner": "kept"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance",
				Name: name, UID: v.UID, Controller: new(true), BlockOwnerDeletion: new(true)}}},
		Spec: corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "launcher", Image: "x"}}},
	}
	kit.Must(s.T, s.Create(s.Context(), p))
	s.podRuns(p.Name)
	return v
}

func (s scene) vmiStatus(v *kubevirt.VirtualMachineInstance, status string) {
	s.Helper()
	kit.Must(s.T, s.Status().Patch(s.Context(), v, merge(`{"status":%s}`, status)))
}

func (s scene) podRuns(name string) {
	s.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
	kit.Must(s.T, s.Status().Patch(s.Context(), p, client.RawPatch(types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"PodScheduled","status":"True"}]}}`))))
}

// migrate asks for a migration, as a user does.
func (s scene) migrate(name, vmi string) *kubevirt.VirtualMachineInstanceMigration {
	s.Helper()
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
	m.Spec.VMIName = vmi
	kit.Must(s.T, s.Create(s.Context(), m))
	return m
}

func (s scene) read(m *kubevirt.VirtualMachineInstanceMigration) *kubevirt.VirtualMachineInstanceMigration {
	s.Helper()
	now := &kubevirt.VirtualMachineInstanceMigration{}
	if err := s.Get(s.Context(), client.ObjectKeyFromObject(m), now); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		s.Fatal(err)
	}
	return now
}

func (s scene) vmi(name string) *kubevirt.VirtualMachineInstance {
	s.Helper()
	now := &kubevirt.VirtualMachineInstance{}
	kit.Must(s.T, s.Get(s.Context(), client.ObjectKey{Namespace: s.ns, Name: name}, now))
	return now
}

// comes waits for a phase. A final one that was not asked for ends the wait.
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

// target waits for the target pod, nil while there is none.
func (s scene) target(m *kubevirt.VirtualMachineInstanceMigration) *corev1.Pod {
	s.Helper()
	p := &corev1.Pod{}
	err := s.Get(s.Context(), client.ObjectKey{Namespace: s.ns, Name: migration.TargetPodName(m.Spec.VMIName, string(m.UID))}, p)
	if client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return p
}

// scheduled plays the scheduler and the kubelet of the target's node.
func (s scene) scheduled(m *kubevirt.VirtualMachineInstanceMigration, node string) *kubevirt.VirtualMachineInstanceMigration {
	s.Helper()
	var p *corev1.Pod
	kit.Eventually(s.T, "the target pod is made", func() bool { p = s.target(m); return p != nil })
	if n := s.keeps(m.Spec.VMIName); n != 2 {
		s.Errorf("the budget keeps %d when the target pod is there, want 2", n)
	}
	kit.Must(s.T, shared.core.CoreV1().Pods(s.ns).Bind(s.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{}))
	s.podRuns(p.Name)
	return s.comes(m, kubevirt.MigrationScheduled)
}

// keeps is how many pods the VM's budget keeps, 0 without one.
func (s scene) keeps(vmi string) int {
	s.Helper()
	b := &policyv1.PodDisruptionBudget{}
	err := s.Get(s.Context(), client.ObjectKey{Namespace: s.ns, Name: "kubevirt-disruption-budget-" + string(s.vmi(vmi).UID)}, b)
	if client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	if err != nil {
		return 0
	}
	return b.Spec.MinAvailable.IntValue()
}

// agent writes as the agent of a node, over what is there.
func (s scene) agent(node string, m *kubevirt.VirtualMachineInstanceMigration, change func(*kubevirt.VirtualMachineInstanceMigration)) {
	s.Helper()
	kit.Must(s.T, s.tryAgent(node, m, change))
}

func (s scene) tryAgent(node string, m *kubevirt.VirtualMachineInstanceMigration, change func(*kubevirt.VirtualMachineInstanceMigration)) error {
	for {
		now := s.read(m)
		before := now.DeepCopy()
		change(now)
		if now.Status.Phase != before.Status.Phase {
			now.Status.PhaseTransitionTimestamps = before.Transitions(now.Status.Phase, metav1.Now().Time)
		}
		err := shared.agents[node].Status().Patch(s.Context(), now, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// to has the agents bring a scheduled migration to a phase.
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

// says has an agent say its word; the node tells whose it is.
func (s scene) says(node, word string, m *kubevirt.VirtualMachineInstanceMigration) {
	s.Helper()
	s.agent(node, m, func(m *kubevirt.VirtualMachineInstanceMigration) {
		if node == "node-a" {
			m.Status.MigrationState.SourceState = word
		} else {
			m.Status.MigrationState.TargetState = word
		}
	})
}
