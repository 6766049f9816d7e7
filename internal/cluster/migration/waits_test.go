package migration

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// deletions notes the grace periods of deletions.
func (r *rig) deletions() *[]int64 {
	var all []int64
	with, ok := r.Client.(client.WithWatch)
	if !ok {
		r.Fatal("no client with a watch")
	}
	r.Client = interceptor.NewClient(with, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		given := (&client.DeleteOptions{}).ApplyOptions(options)
		if given.GracePeriodSeconds != nil {
			all = append(all, *given.GracePeriodSeconds)
		}
		return c.Delete(ctx, o, options...)
	}})
	return &all
}

// Given a migration that is deleted before a guest has come to its target pod. Then the pod is deleted with a short
// grace period: the VM's own would keep the next one waiting.
func TestATargetPodWithoutAGuestGoesInSeconds(t *testing.T) {
	r := aRig(t)
	all := r.deletions()
	m := r.migrationOf("a")
	r.turn()
	if _, err := r.step(m, 4); err != nil {
		t.Fatal(err)
	}
	r.targetOf(m)
	if err := r.Delete(t.Context(), r.read(m)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.step(m, 3); err != nil {
		t.Fatal(err)
	}
	if len(*all) != 1 || (*all)[0] != emptyGraceSeconds {
		t.Errorf("deleted with %v s", *all)
	}
}

// Given a VM with the launcher pod of somebody beside its own. When its migration has waited for a moment, then phase
// and status say for what, and an Event does, once.
func TestAMigrationThatWaitsSaysForWhat(t *testing.T) {
	r := aRig(t)
	recorder := events.NewFakeRecorder(10)
	r.Events = recorder
	m := r.migrationOf("a")
	second := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "second", Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "vmi-a"}}}
	r.make(second)
	r.turn()
	result, err := r.step(m, 2)
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > migration.SayAfter {
		t.Fatalf("%+v, %v", result, err)
	}
	r.phases.now[m.UID] = seenPhase{phase: kubevirt.MigrationPending, states: "/", at: time.Now().Add(-migration.SayAfter)}
	if _, err := r.step(m, 3); err != nil {
		t.Fatal(err)
	}
	if now := r.read(m); now.Status.Phase != kubevirt.MigrationPending || !strings.Contains(migration.StateOf(now).WaitsFor, "more than one launcher pod") {
		t.Errorf("%+v", now.Status)
	}
	if len(recorder.Events) != 1 || !strings.Contains(<-recorder.Events, "MigrationWaits") {
		t.Error("no Event, or more than one")
	}
	if err := r.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	r.turn()
	if _, err := r.step(m, 3); err != nil || migration.StateOf(r.read(m)).WaitsFor != "" || r.phase(m) != kubevirt.MigrationScheduling {
		t.Errorf("%v, %+v", err, r.read(m).Status)
	}
}

// Given a migration that cannot be written any more. When it is to fail, then it holds no slot.
func TestAMigrationWhoseEndIsRefusedHoldsNothing(t *testing.T) {
	r := aRig(t)
	all := []*object{r.migrationOf("a"), r.migrationOf("b"), r.migrationOf("c")}
	r.turn()
	for _, m := range all[:2] {
		if _, err := r.step(m, 3); err != nil || r.phase(m) != kubevirt.MigrationScheduling {
			t.Fatalf("%v, %s", err, r.phase(m))
		}
	}
	working := r.Client
	with, ok := r.Client.(client.WithWatch)
	if !ok {
		t.Fatal("no client with a watch")
	}
	r.Client = interceptor.NewClient(with, interceptor.Funcs{SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
		return apierrors.NewRequestEntityTooLargeError("too large")
	}})
	g, err := r.gather(t.Context(), r.read(all[0]))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.fail(t.Context(), g, "it is over"); err == nil {
		t.Fatal("it is written")
	}
	r.Client = working
	r.turn()
	if !r.turns.has(all[2].UID) {
		t.Error("the third has no turn beside one that is to end")
	}
}
