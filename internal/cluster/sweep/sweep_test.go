package sweep

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
)

const orphan = "0f0f0f0f-0000-4000-8000-000000000000"

// Given one leftover of each kind, and beside it what is needed. When the sweep runs, then each
// leftover goes, with an Event, a line of the log and a count, and the rest stays.
func TestTheSweepEndsWhatBelongsToNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := given(t)
		moved, lost, kept := w.vm("moved", "a"), w.vm("lost", "gone"), w.vm("kept", "a")
		moved.Status.EvacuationNodeName, lost.Status.EvacuationNodeName, kept.Status.EvacuationNodeName = "b", "gone", "a"
		for _, v := range []*kubevirt.VirtualMachineInstance{moved, lost, kept} {
			must(t, w.Status().Update(t.Context(), v))
		}
		labelled, moving := w.vm("labelled", "a"), w.vm("moving", "a")
		for _, v := range []*kubevirt.VirtualMachineInstance{labelled, moving} {
			v.Labels = map[string]string{kubevirt.MigrationTargetLabel: "b"}
			must(t, w.Update(t.Context(), v))
		}
		says := func(v *kubevirt.VirtualMachineInstance, migration string) {
			v.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.MigrationUndecided, Status: "True", Message: "migration " + migration + " waits since then: x"}}
			must(t, w.Status().Update(t.Context(), v))
		}
		named := w.vm("named", "a")
		says(named, "stripped")
		says(moving, "runs")
		w.migration("runs", "moving", kubevirt.MigrationRunning)
		w.migration("of-nobody", "none", kubevirt.MigrationTargetReady)
		w.migration("ended", "none", kubevirt.MigrationFailed)
		abandoned, ghost, needed := w.target("kept", "gone"), w.target("none", "gone"), w.target("moving", "uid-runs")
		unneeded, foreign := w.budget(orphan), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "mine"}}
		w.make(foreign)

		must(t, w.sweep(t.Context()))
		if w.there(moved); moved.Status.EvacuationNodeName != "" {
			t.Errorf("the mark of a former node: %+v", moved.Status)
		}
		if w.there(lost); lost.Status.EvacuationNodeName != "" {
			t.Error("the mark of a node that is gone stays")
		}
		if w.there(kept); kept.Status.EvacuationNodeName != "a" {
			t.Error("a mark that counts goes")
		}
		if w.there(labelled); labelled.Labels[kubevirt.MigrationTargetLabel] != "" {
			t.Error("the label stays")
		}
		if w.there(named); named.Condition(kubevirt.MigrationUndecided) != nil {
			t.Error("what is said of a migration that does not exist stays")
		}
		if w.there(moving); moving.Condition(kubevirt.MigrationUndecided) == nil {
			t.Error("what is said of a migration goes")
		}
		if w.there(moving); moving.Labels[kubevirt.MigrationTargetLabel] != "b" {
			t.Error("the label of a migration goes")
		}
		for o, want := range map[client.Object]bool{abandoned: false, ghost: false, needed: true, unneeded: false, foreign: true} {
			if w.there(o) != want {
				t.Errorf("%s: is there: %v, want %v", o.GetName(), !want, want)
			}
		}
		if one, two := (<-w.again).Object.GetName(), (<-w.again).Object.GetName(); one+two != "endedof-nobody" && one+two != "of-nobodyended" {
			t.Errorf("to look at: %s, %s", one, two)
		}
		counted := map[metrics.Leftover]int{"mark": 2, "label": 1, "pod": 2, "budget": 1, "migration": 1, "finalizer": 1, "condition": 1}
		w.removed(counted)
		for range 9 {
			if said := <-w.events.Events; !strings.HasPrefix(said, "Normal LeftoverRemoved ") {
				t.Error(said)
			}
		}
		if n := strings.Count(w.log.String(), "a leftover is removed"); n != 9 {
			t.Errorf("%d lines: %s", n, w.log.String())
		}

		// When nothing has become of the migrations, then they are handed on again and not counted again.
		must(t, w.sweep(t.Context()))
		if len(w.again) != 2 {
			t.Errorf("%d to look at", len(w.again))
		}
		w.removed(counted)
	})
}

// Given a VM that was made anew, and a migration of the former one of its name. Then that needs no label of the new one,
// and is handed to its controller.
func TestAFormerVMsMigrationIsOneOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := given(t)
		v := w.vm("vm", "a")
		v.Labels = map[string]string{kubevirt.MigrationTargetLabel: "b"}
		must(t, w.Update(t.Context(), v))
		w.migration("former", "vm", kubevirt.MigrationTargetReady)
		m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "former"}}
		if !w.there(m) {
			t.Fatal("no migration")
		}
		m.Status.MigrationState = &kubevirt.MigrationState{VMIUID: "former"}
		must(t, w.Status().Update(t.Context(), m))
		must(t, w.sweep(t.Context()))
		if w.there(v); v.Labels[kubevirt.MigrationTargetLabel] != "" {
			t.Error("the label stays")
		}
		if len(w.again) != 1 {
			t.Errorf("%d migrations are handed to their controller", len(w.again))
		}
	})
}

// What a controller ends by itself within the time of a look is not the sweep's.
func TestTheSweepLeavesTheControllersTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := given(t)
		w.migration("ends", "none", kubevirt.MigrationTargetReady)
		later := w.budget(orphan)
		must(t, w.Delete(t.Context(), later))
		go func() {
			time.Sleep(settle / 2) //nolint:forbidigo // virtual
			synctest.Wait()
			m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "ends"}}
			w.there(m)
			m.Status.Phase, m.Finalizers = kubevirt.MigrationFailed, nil
			must(t, errors.Join(w.Status().Update(t.Context(), m), w.Update(t.Context(), m)))
			w.budget(orphan) // has been no leftover for long enough
		}()
		must(t, w.sweep(t.Context()))
		if len(w.again) > 0 {
			t.Error("the controller is told of what it has ended")
		}
		if !w.there(later) {
			t.Error("a budget is deleted at its first look")
		}
		w.removed(nil)
	})
}

// Given leftovers that cannot be removed, or of which live reads tell nothing. Then the others
// are removed, one line says why, and nothing is counted that is still there.
func TestALeftoverThatStaysStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := given(t)
		one, two := w.target("none", "gone"), w.target("nobody", "gone")
		var allowed atomic.Bool
		w.fails = func(verb string, o client.Object) error {
			if verb == "delete" && o.GetName() == one.Name && !allowed.Load() {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, one.Name, errors.New("a policy"))
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { must(t, w.Start(ctx)) }()
		time.Sleep(settle + time.Second) //nolint:forbidigo // virtual
		synctest.Wait()
		if !strings.Contains(w.log.String(), "a policy") || w.there(two) {
			t.Errorf("the other is there: %v; %s", w.there(two), w.log.String())
		}
		w.removed(map[metrics.Leftover]int{"pod": 1})
		// The next sweep tries again.
		allowed.Store(true)
		time.Sleep(every + settle) //nolint:forbidigo // virtual
		synctest.Wait()
		w.removed(map[metrics.Leftover]int{"pod": 2})
		cancel()
	})
}

// A VMI that cannot be read, or whose CRD goes, counts as one that exists. Otherwise launchers
// of VMs that run would be deleted.
func TestWithoutProofNothingIsALeftover(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, kubevirt.CRD)
	for name, c := range map[string]struct{ crd, vmi error }{
		"no CRD":          {crd: gone},
		"no answer":       {vmi: errors.New("EOF")},
		"a proxy's":       {vmi: &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Code: 404}}},
		"none of the CRD": {crd: errors.New("EOF")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := given(t)
				pod, b := w.target("none", "gone"), w.budget(orphan)
				w.migration("m", "none", kubevirt.MigrationTargetReady)
				w.crd = c.crd
				w.fails = func(verb string, o client.Object) error {
					if _, vmi := o.(*kubevirt.VirtualMachineInstance); vmi && verb == "get" {
						return c.vmi
					}
					return nil
				}
				_ = w.sweep(t.Context())
				if !w.there(pod) || c.crd != nil && !w.there(b) || len(w.again) > 0 {
					t.Error("something is removed")
				}
			})
		})
	}
}
