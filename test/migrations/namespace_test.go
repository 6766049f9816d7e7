//go:build !unit

package migrations

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/kit"
)

// inEveryPhase makes VMs with budgets and a migration of each, by the VM's name: one in every
// phase, one whose source is Gone, and one that has failed while a copy may be at the target.
func (s scene) inEveryPhase() map[string]*kubevirt.VirtualMachineInstanceMigration {
	s.Helper()
	const running = kubevirt.MigrationRunning
	all := map[string]*kubevirt.VirtualMachineInstanceMigration{}
	move := func(name string, phase kubevirt.MigrationPhase) *kubevirt.VirtualMachineInstanceMigration {
		s.vm(name)
		kit.Eventually(s.T, "the budget of "+name, func() bool { return s.keeps(name) == 1 })
		m := s.Migrate("m-"+name, name)
		all[name] = m
		switch phase {
		case kubevirt.MigrationPending:
		case kubevirt.MigrationScheduling:
			s.comesTarget(m)
		default:
			s.scheduled(m, "node-b")
			s.to(m, phase)
		}
		return m
	}
	s.says("node-a", kubevirt.SourceRunning, move("failed", running), "it stayed")
	s.comes(all["failed"], kubevirt.MigrationFailed)
	move("scheduling", kubevirt.MigrationScheduling)
	move("running", running)
	s.says("node-a", kubevirt.SourceGone, move("gone", running))
	moved := move("succeeded", running)
	s.says("node-b", kubevirt.TargetRunning, moved)
	s.says("node-a", kubevirt.SourceGone, moved)
	s.comes(moved, kubevirt.MigrationSucceeded)
	move("scheduled", kubevirt.MigrationScheduled)
	move("preparing", kubevirt.MigrationPreparingTarget)
	move("ready", kubevirt.MigrationTargetReady)
	// All slots are taken: running, gone, scheduling, scheduled, preparing, ready.
	move("pending", kubevirt.MigrationPending)
	return all
}

// endPods plays the kubelets: it ends the pods that are being deleted.
func (s scene) endPods() (left int) {
	s.Helper()
	var pods corev1.PodList
	kit.Must(s.T, s.List(s.Context(), &pods, client.InNamespace(s.NS)))
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp != nil {
			kit.Must(s.T, client.IgnoreNotFound(s.Delete(s.Context(), p, client.GracePeriodSeconds(0))))
		}
	}
	return len(pods.Items)
}

// Given a namespace with VMs, their budgets, and migrations in every phase. When it is deleted
// and the agents have reported for the last time, then it is gone within a minute, and no
// write into it is tried again and again. Otherwise a tenant's namespace would stay
// Terminating until somebody removed our finalizers by hand.
func TestADeletedNamespaceEndsWithItsLastGuest(t *testing.T) {
	s := given(t)
	elsewhere := given(t) // its settings stay while the namespace goes
	kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere.NS, Name: "kubevirt"}}
	kv.Spec.Configuration.MigrationConfiguration = &kubevirt.MigrationConfiguration{
		ParallelMigrationsPerCluster: new(int64(6)), ParallelOutboundMigrationsPerNode: new(int64(6))}
	policy := &v1alpha1.EvacuationPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name}, Spec: v1alpha1.EvacuationPolicySpec{ParallelInboundMigrationsPerNode: new(int32(20))}}
	elsewhere.Make(kv, "")
	elsewhere.Make(policy, "")
	c := controller(t)
	all := s.inEveryPhase()
	for name, phase := range map[string]kubevirt.MigrationPhase{"pending": kubevirt.MigrationPending, "scheduling": kubevirt.MigrationScheduling,
		"scheduled": kubevirt.MigrationScheduled, "preparing": kubevirt.MigrationPreparingTarget, "ready": kubevirt.MigrationTargetReady,
		"running": kubevirt.MigrationRunning, "gone": kubevirt.MigrationRunning, "failed": kubevirt.MigrationFailed} {
		if now := s.read(all[name]); now.Status.Phase != phase && (now.Status.Phase != "" || phase != kubevirt.MigrationPending) {
			t.Errorf("%s is %s: %s", name, now.Status.Phase, migration.StateOf(now).FailureReason)
		}
	}
	s.Change(s.vmi("pending"), `{"metadata":{"annotations":{"vmgrace.io/evacuation-cause":"Eviction"}}}`)
	s.SetStatus(s.vmi("pending"), `{"evacuationNodeName":"node-a"}`)

	kit.Must(t, shared.StartControllers("namespace-controller"))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.NS}}
	kit.Must(t, s.Delete(t.Context(), ns))
	running := all["running"]
	kit.Eventually(t, "the one that runs is aborted", func() bool { return s.read(running).Status.MigrationState.AbortRequested })
	for _, name := range []string{"running", "gone", "failed"} {
		if s.read(all[name]) == nil {
			t.Errorf("migration %s is gone before its agents have reported", name)
		}
	}
	s.says("node-a", kubevirt.SourceRunning, running)
	s.says("node-b", kubevirt.TargetAbsent, running)
	s.says("node-b", kubevirt.TargetAbsent, all["failed"])
	s.says("node-b", kubevirt.TargetRunning, all["gone"])
	for s.endPods() > 0 {
	}
	ended := time.Now()
	kit.Eventually(t, "the namespace is gone", func() bool {
		s.endPods() // none comes after the last guest, but for one that was being made
		return apierrors.IsNotFound(s.Get(t.Context(), client.ObjectKeyFromObject(ns), &corev1.Namespace{}))
	})
	if took := time.Since(ended); took > time.Minute {
		t.Errorf("gone %v after the last guest's end", took)
	}
	for line := range strings.Lines(c.Log()) {
		if strings.Contains(line, "is tried again") || strings.Contains(line, `"level":"ERROR"`) {
			t.Errorf("a write into the namespace fails: %s", line)
		}
	}
}
