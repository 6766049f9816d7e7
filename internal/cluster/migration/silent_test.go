package migration

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// Given a migration to a node whose agent is not installed, not ready or of another version.
// When a minute has passed without its answer, then the migration has failed, its reason says
// what to look at, and the next target avoids that node. Otherwise the next one would wait
// there again.
func TestATargetWhoseAgentIsSilentIsAvoided(t *testing.T) {
	r := aRig(t)
	step := func(m *object) {
		t.Helper()
		r.turn()
		if _, err := r.step(m, 4); err != nil {
			t.Fatal(err)
		}
	}
	m := r.migrationOf("a")
	step(m)
	p := r.targetOf(m)
	p.Spec.NodeName = "node-b"
	if err := r.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	p.Status.Phase, p.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := r.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	step(m)
	if phase := r.phase(m); phase != kubevirt.MigrationScheduled {
		t.Fatalf("phase %s", phase)
	}
	r.phases.now[m.UID] = seenPhase{phase: kubevirt.MigrationScheduled, states: "/", at: time.Now().Add(-migration.AgentTimeout)}
	step(m)
	why := migration.StateOf(r.read(m)).FailureReason
	for _, words := range []string{"agent of node node-b", "within 1m0s", "version", "log", "--migration-listen"} {
		if r.phase(m) != kubevirt.MigrationFailed || !strings.Contains(why, words) {
			t.Errorf("%s without %q: %s", r.phase(m), words, why)
		}
	}

	next := &object{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "next"}}
	next.Spec.VMIName = "a"
	r.make(next)
	step(next)
	terms := r.targetOf(next).Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 2 || len(terms[1].Preference.MatchFields) != 1 || terms[1].Preference.MatchFields[0].Values[0] != "node-b" {
		t.Errorf("preferred %+v", terms)
	}
}

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
