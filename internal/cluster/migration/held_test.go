package migration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// preempt deletes a VM's launcher as the scheduler does, so that its shutdown is held.
func (r *rig) preempt(vm string) {
	r.Helper()
	p := &corev1.Pod{}
	if err := r.Get(r.Context(), client.ObjectKey{Namespace: "n", Name: "virt-launcher-" + vm}, p); err != nil {
		r.Fatal(err)
	}
	p.Finalizers, p.DeletionGracePeriodSeconds = []string{"test/stays"}, new(int64(300))
	p.Annotations[evacuation.HoldForAnnotation] = evacuation.CausePreemption
	p.Annotations[evacuation.ReserveAnnotation], p.Annotations[evacuation.AllowanceAnnotation] = "60", "150"
	if err := r.Update(r.Context(), p); err != nil {
		r.Fatal(err)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: evacuation.CausePreemption}}
	if err := r.Status().Update(r.Context(), p); err != nil {
		r.Fatal(err)
	}
	if err := r.Delete(r.Context(), p); err != nil {
		r.Fatal(err)
	}
}

// turnsNow returns the VMs whose migrations have a turn.
func (r *rig) turnsNow() map[string]bool {
	r.Helper()
	all, _, err := r.queue.moving(r.Context(), time.Now())
	if err != nil {
		r.Fatal(err)
	}
	turns := map[string]bool{}
	for _, m := range evacuation.Turns(all, r.Settings.Get()) {
		turns[m.Migration.Spec.VMIName] = true
	}
	return turns
}

// Given five migrations that run, and a limit for those for which shutdowns are held. Those
// take no slot of others, and others take none of theirs. Otherwise a drain stops for a tainted
// node, or a preempted VM waits behind a drain.
func TestHeldMigrationsAndOthersHaveSlotsOfTheirOwn(t *testing.T) {
	for name, heldRun := range map[string]bool{"five held ones run": true, "five others run": false} {
		t.Run(name, func(t *testing.T) {
			r := aRig(t)
			r.make(&v1alpha1.EvacuationPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name}, Spec: v1alpha1.EvacuationPolicySpec{ParallelHeldMigrations: new(int32(5))}})
			r.Settings = settings.New(r.Client, func() bool { return true })
			for _, vm := range []string{"1", "2", "3", "4", "5"} {
				m := r.migrationOf(vm)
				m.Status.Phase = kubevirt.MigrationRunning
				m.Status.MigrationState = &kubevirt.MigrationState{SourceNode: "node-" + vm, SourcePodUID: "uid-of-virt-launcher-" + vm, TargetNode: "node-b" + vm}
				if err := r.Status().Update(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				if heldRun {
					r.preempt(vm)
				}
			}
			r.migrationOf("other")
			r.migrationOf("held")
			r.preempt("held")
			turns := r.turnsNow()
			if turns["other"] != heldRun || turns["held"] == heldRun {
				t.Errorf("turns: %v", turns)
			}
		})
	}
}
