//go:build !unit

package evictions

import (
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Given a marked VM without a budget that protects it. When its launcher pod is evicted
// again and again, as kubectl drain does each 5 s, then each eviction is refused with the
// text of the first. Otherwise a retry would stop a VM that is about to move.
func TestAMarkedVMIsNeverEvictedForLackOfABudget(t *testing.T) {
	replicas(t, 2)
	another := func(p *policyv1.PodDisruptionBudget) {
		p.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: "another"}}
	}
	for name, given := range map[string]func(*vm){
		"none": func(*vm) {},
		"one that is not counted yet": func(v *vm) {
			v.budget(func(p *policyv1.PodDisruptionBudget) { p.Status.ExpectedPods, p.Status.DisruptionsAllowed = 0, 0 })
		},
		"one that is not observed": func(v *vm) {
			v.budget(func(p *policyv1.PodDisruptionBudget) { p.Status.ObservedGeneration = 0 })
		},
		"one that allows it": func(v *vm) {
			v.budget(func(p *policyv1.PodDisruptionBudget) { p.Status.DisruptionsAllowed = 1 })
		},
		"one that selects another pod":       func(v *vm) { v.budget(another) },
		"one, and the launcher is pending":   func(v *vm) { v.budget(); v.podStatus(`{"phase":"Pending"}`) },
		"one, and the launcher is not ready": func(v *vm) { v.budget(); v.podStatus(`{"conditions":[{"type":"Ready","status":"False"}]}`) },
	} {
		for _, strategy := range []string{"LiveMigrate", "LiveMigrateIfPossible", "External"} {
			t.Run(name+","+strategy, func(t *testing.T) {
				v := newVM(t, vm{strategy: strategy, migratable: true})
				given(v)
				for range 4 { // so both replicas are asked
					if a := v.evict(); !a.marks(v) {
						t.Fatalf("%+v", a)
					}
				}
				if now := v.get(); now.Status.EvacuationNodeName != "node-a" || !v.podThere() {
					t.Errorf("marked for %q, its pod is there: %v", now.Status.EvacuationNodeName, v.podThere())
				}
			})
		}
	}
}

// marks tells whether an answer has the text of the first eviction's.
func (a answer) marks(v *vm) bool {
	return a.code == 429 && a.retry == 0 && strings.HasSuffix(a.text, `Eviction triggered evacuation of VMI "default/`+v.name+`"`)
}

// podStatus merges JSON into the status of the launcher pod.
func (v *vm) podStatus(status string) { v.Helper(); v.SetStatus(v.launcherPod(), status) }

// Given a VM that has just started, so that nobody knows yet whether it is live-migratable.
// When its launcher pod is evicted, then the eviction is refused and the VM is not marked.
// When the pod has been ready for two minutes, then the VM counts as not live-migratable.
// Otherwise a drain would stop a VM that could move.
func TestAVMThatIsNotJudgedYetIsNotStopped(t *testing.T) {
	replicas(t, 2)
	for _, strategy := range []string{"LiveMigrate", "LiveMigrateIfPossible"} {
		t.Run(strategy, func(t *testing.T) {
			v := newVM(t, vm{strategy: strategy})
			v.status(`{"conditions":null}`)
			ready := func(since time.Duration) {
				v.podStatus(`{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"` + time.Now().Add(-since).UTC().Format(time.RFC3339) + `"}]}`)
			}
			ready(time.Second)
			for range 4 {
				a := v.evict()
				if a.code != 429 || !strings.HasSuffix(a.text, "kubevirt failed getting the vmi: it is not known yet whether "+v.name+" is live-migratable") {
					t.Fatalf("just ready: %+v", a)
				}
			}
			if now := v.get(); now.Status.EvacuationNodeName != "" || len(now.Annotations) > 0 {
				t.Errorf("marked for %q: %v", now.Status.EvacuationNodeName, now.Annotations)
			}
			ready(2 * time.Minute)
			if a := v.evict(); (a.code == 0) != (strategy == "LiveMigrateIfPossible") || a.code != 0 && !strings.Contains(a.text, "is not live-migratable") {
				t.Errorf("after two minutes: %+v", a)
			}
		})
	}
}

// Given a VM that has moved, and the launcher pod that its guest has left, which the VM's own and
// a user's budget select. When the pod is evicted, then the webhook answers 429, until the pod has
// ended. Otherwise the API server would answer 500, and kubectl drain would end with an error.
func TestThePodThatAGuestHasLeftIsNotAnswered500(t *testing.T) {
	replicas(t, 2)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.budget()
	v.Make(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "users-own"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: v.uid}}}}, "")
	v.status(`{"nodeName":"node-b","migrationState":{"sourceNode":"node-a","sourcePod":"` + v.launcher() + `","targetNode":"node-b"}}`)
	for range 4 { // so both replicas are asked
		if a := v.evict(); a.code != 429 || !strings.HasSuffix(a.text, "VMI default/"+v.name+" has moved to node node-b: this pod ends by itself") {
			t.Fatalf("%+v", a)
		}
	}
	v.podStatus(`{"phase":"Succeeded"}`)
	if a := v.evict(); a.code != 0 {
		t.Errorf("the pod has ended: %+v", a)
	}
}
