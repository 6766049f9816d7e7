//go:build !unit

package evictions

import (
	"strings"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

const byBudget = "Cannot evict pod as it would violate the pod's disruption budget."

// What happens to a VM between the look at it and its mark counts.
func TestAVMThatChangesBeforeItsMarkIsLookedAtAgain(t *testing.T) {
	w := newWire(t)
	replicasVia(t, 1, w.kubeconfig)
	strategy := kubevirt.StrategyLiveMigrate
	for name, change := range map[string]func(*testing.T, *vm){
		"it moves": func(t *testing.T, v *vm) { t.Helper(); v.status(t, `{"nodeName":"node-b"}`) },
		"it is deleted": func(t *testing.T, v *vm) {
			t.Helper()
			must(t, shared.objects.Delete(t.Context(), v.get(t)))
		},
		"it is made anew": func(t *testing.T, v *vm) {
			t.Helper()
			must(t, shared.objects.Delete(t.Context(), v.get(t)))
			next := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: v.name}}
			next.Spec.EvictionStrategy = &strategy
			must(t, shared.objects.Create(t.Context(), next))
			v.status(t, `{"phase":"Running","nodeName":"node-a","conditions":[{"type":"LiveMigratable","status":"True"}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
			w.once(func() { change(t, v) })
			// The pod that is evicted is not that of a VM on that node any more.
			if a := v.evict(t, nil); a.code != 0 {
				t.Errorf("%+v, want it to be allowed", a)
			}
			vmi := &kubevirt.VirtualMachineInstance{}
			err := shared.objects.Get(t.Context(), client.ObjectKey{Namespace: v.namespace, Name: v.name}, vmi)
			if client.IgnoreNotFound(err) != nil || vmi.Status.EvacuationNodeName != "" {
				t.Errorf("%v; marked for %q", err, vmi.Status.EvacuationNodeName)
			}
		})
	}
	t.Run("somebody marks it", func(t *testing.T) {
		v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
		v.budget(t)
		w.once(func() { v.status(t, `{"evacuationNodeName":"node-a"}`) })
		if a := v.evict(t, nil); a.code != 429 || !strings.Contains(a.text, byBudget) {
			t.Errorf("%+v, want the budget's answer", a)
		}
	})
}

func (v *vm) status(t *testing.T, status string) {
	t.Helper()
	vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: v.name}}
	must(t, shared.objects.Status().Patch(t.Context(), vmi, client.RawPatch("application/merge-patch+json", []byte(`{"status":`+status+`}`))))
}

// The explanation is written, and then the process is no more.
func TestAReplicaThatDiesInTheMiddleOfAMarkLeavesNone(t *testing.T) {
	w := newWire(t)
	r := replicasVia(t, 1, w.kubeconfig)[0]
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.budget(t)
	w.atMark.Store(new(func() bool { r.Kill(); return false }))
	if a := v.evict(t, func(e *policyv1.Eviction) {
		e.Annotations = map[string]string{"requested-by": "sigs.k8s.io/descheduler"}
	}); a.code != 429 || !strings.Contains(a.text, byBudget) {
		t.Errorf("%+v, want the budget's answer", a)
	}
	half := v.get(t)
	if half.Annotations[evacuation.CauseAnnotation] == "" || half.Status.EvacuationNodeName != "" {
		t.Fatalf("it did not die between the two: %+v", half)
	}
	replicas(t, 1)
	if a := v.evict(t, nil); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") {
		t.Errorf("%+v, want it to be marked now", a)
	}
	now := v.get(t)
	if now.Status.EvacuationNodeName != "node-a" || now.Annotations[kubevirt.EvictionSourceAnnotation] != "" {
		t.Errorf("marked for %q, explained as %v: the second eviction was nobody's but kubectl's", now.Status.EvacuationNodeName, now.Annotations)
	}
}

func TestTwoReplicasThatMarkAtOnceMakeOneMark(t *testing.T) {
	w := newWire(t)
	replicasVia(t, 2, w.kubeconfig)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.budget(t)
	// Each mark waits until the other is about to be written.
	var both sync.WaitGroup
	both.Add(2)
	met := make(chan struct{})
	go func() { both.Wait(); close(met) }()
	var arrived sync.Mutex
	n := 0
	w.atMark.Store(new(func() bool {
		arrived.Lock()
		if n++; n <= 2 {
			both.Done()
		}
		arrived.Unlock()
		select {
		case <-met:
		case <-time.After(5 * time.Second): // the test fails: see below
		}
		return true
	}))
	var answers [2]answer
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = v.evict(t, nil) })
	}
	group.Wait()
	select {
	case <-met:
	default:
		t.Error("the two did not meet")
	}
	marks := 0
	for _, a := range answers {
		if strings.Contains(a.text, "Eviction triggered evacuation") {
			marks++
		} else if !strings.Contains(a.text, byBudget) {
			t.Errorf("%+v", a)
		}
	}
	if marks != 1 || v.get(t).Status.EvacuationNodeName != "node-a" {
		t.Errorf("%d answers say that it was marked, for %q", marks, v.get(t).Status.EvacuationNodeName)
	}
}
