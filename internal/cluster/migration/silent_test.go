package migration

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// Given a migration that has begun, waits for an agent, and whose VMI is gone, so that no VMI can
// say so. When the controller looks at it again and again, then it says so by one Event; and by
// another one if it waits again after something has changed.
func TestAMigrationWithoutAVMIIsReportedOnce(t *testing.T) {
	r := aRig(t)
	recorder := events.NewFakeRecorder(10)
	r.Events = recorder
	m := &object{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m", Finalizers: []string{migration.Finalizer}}}
	m.Spec.VMIName = "gone"
	r.make(m)
	m.Status.Phase = kubevirt.MigrationRunning
	m.Status.MigrationState = &kubevirt.MigrationState{
		SourceNode: "node-a", TargetNode: "node-b", StartTimestamp: new(metav1.Now()), VMIUID: "u", AbortRequested: true,
	}
	if err := r.Status().Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	looks := func() {
		t.Helper()
		if _, err := r.step(m, 3); err != nil {
			t.Fatal(err)
		}
	}
	waits := func(since time.Duration) {
		r.phases.now[m.UID] = seenPhase{phase: kubevirt.MigrationRunning, states: "/", at: time.Now().Add(-since)}
	}
	said := func(want int) {
		t.Helper()
		if got := len(recorder.Events); got != want {
			t.Errorf("%d Events, want %d", got, want)
		}
	}
	waits(migration.StillAfter)
	looks()
	said(1)
	waits(0)
	looks()
	said(1)
	waits(migration.StillAfter + time.Minute)
	looks()
	said(2)
}
