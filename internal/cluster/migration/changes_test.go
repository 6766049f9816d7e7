package migration

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// enqueued counts what events enqueue.
type enqueued struct {
	requests // methods not defined here are not called

	n int
}

func (e *enqueued) AddAfter(reconcile.Request, time.Duration) { e.n++ }

// tell tells the queue that an object has become what it is now. It returns how many looks that asks for.
func (r *rig) tell(before, now client.Object) int {
	r.Helper()
	if err := r.Get(r.Context(), client.ObjectKeyFromObject(now), now); err != nil {
		r.Fatal(err)
	}
	q := &enqueued{}
	r.queue.soon().Update(r.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: now}, q)
	return q.n
}

func (r *rig) wantTurns(what string, reads int, want ...string) {
	r.Helper()
	r.reads = 0
	if got := slices.Sorted(maps.Keys(r.turnsNow())); !slices.Equal(got, want) {
		r.Errorf("%s: it is the turn of %v, want %v", what, got, want)
	}
	if r.reads != reads {
		r.Errorf("%s: %d VMIs were read, want %d", what, r.reads, reads)
	}
}

// Given many migrations that wait. When something changes of a VM, then the turns are those by the new state,
// and no other VM is read: in a large cluster thousands wait.
func TestOnlyVMsThatHaveChangedAreReadForTheTurns(t *testing.T) {
	r := aRig(t)
	var all []*object
	for i := range 50 {
		all = append(all, r.migrationOf(fmt.Sprintf("%02d", i)))
	}
	r.wantTurns("at first", 50, "00", "01")
	r.wantTurns("nothing has changed", 0, "00", "01")

	before, pod := &corev1.Pod{}, &corev1.Pod{}
	pod.Namespace, pod.Name = "n", "virt-launcher-07"
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(pod), before); err != nil {
		t.Fatal(err)
	}
	r.preempt("07")
	if n := r.tell(before, pod); n != 1 {
		t.Errorf("a preemption asks for %d looks", n)
	}
	r.wantTurns("07 is preempted: it is the first of the node's two", 1, "00", "07")

	// What no turn depends on asks for no look, and is not old at the next one.
	before = pod.DeepCopy()
	pod.Annotations["a"] = "b"
	if err := r.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if n := r.tell(before, pod); n != 0 {
		t.Errorf("an annotation asks for %d looks", n)
	}
	r.wantTurns("07 has an annotation", 1, "00", "07")

	vmi := &kubevirt.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name = "n", "00"
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
		t.Fatal(err)
	}
	old := vmi.DeepCopy()
	vmi.Status.NodeName = "node-b"
	if err := r.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	r.tell(old, vmi)
	r.wantTurns("00 is on another node", 1, "00", "01", "07")

	q := &enqueued{}
	if err := r.Delete(t.Context(), all[1]); err != nil {
		t.Fatal(err)
	}
	r.queue.soon().Delete(t.Context(), event.DeleteEvent{Object: all[1]}, q)
	r.wantTurns("the migration of 01 is deleted", 0, "00", "02", "07")
	if q.n != 1 {
		t.Errorf("a deletion asks for %d looks", q.n)
	}

	begun := all[2].DeepCopy()
	begun.Status.Phase, begun.Status.MigrationState = kubevirt.MigrationRunning, &kubevirt.MigrationState{SourceNode: "node-a"}
	if err := r.Status().Update(t.Context(), begun); err != nil {
		t.Fatal(err)
	}
	r.tell(all[2], begun)
	r.wantTurns("02 runs", 1, "00", "07")
	r.wantTurns("02 runs still: what has begun is read each time", 1, "00", "07")

	r.queue.vms = nil
	r.wantTurns("another leader looks", 49, "00", "07")
}

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
