package index

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Given 1,000 VMs that are there when a controller starts. A new one is first, the marked one, which
// comes last, is among the first hundred, and all others have their turn within half a second.
func TestAMarkedVMIsLookedAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := priorityqueue.New[reconcile.Request]("test")
		defer q.ShutDown()
		h := &VMIs{}
		create := func(name, marked string, there bool) {
			vmi := &kubevirt.VirtualMachineInstance{}
			vmi.Name, vmi.Status.NodeName, vmi.Status.EvacuationNodeName = name, "node", marked
			h.Create(t.Context(), event.CreateEvent{Object: vmi, IsInInitialList: there}, q)
		}
		next := func() string {
			r, _ := q.Get()
			q.Done(r)
			return r.Name
		}
		const many = 1000
		for i := range many {
			create(fmt.Sprint(i), "", true)
		}
		create("marked", "node", true)
		create("new", "", false)
		synctest.Wait()
		if first := next(); first != "new" {
			t.Errorf("the first is %s", first)
		}
		seen := map[string]bool{}
		for began := time.Now(); len(seen) <= many; {
			name := next()
			seen[name] = true
			if name == "marked" && (len(seen) > firstLooks+1 || time.Since(began) > 0) {
				t.Errorf("the marked one is number %d, after %v", len(seen), time.Since(began))
			}
			if took := time.Since(began); took > firstLooksEvery*many/firstLooks {
				t.Fatalf("after %v %d of %d have had their turn", took, len(seen), many)
			}
		}
	})
}

// An event of a VM that waits for its first look ends the wait.
func TestAVMThatChangesDoesNotWaitForItsFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := priorityqueue.New[reconcile.Request]("test")
		defer q.ShutDown()
		h := &VMIs{}
		vmi := &kubevirt.VirtualMachineInstance{}
		vmi.Name = "last"
		h.there.Store(100 * firstLooks)
		h.Create(t.Context(), event.CreateEvent{Object: vmi, IsInInitialList: true}, q)
		h.Update(t.Context(), event.UpdateEvent{ObjectOld: vmi, ObjectNew: vmi}, q)
		began := time.Now()
		if r, _ := q.Get(); r.NamespacedName != (types.NamespacedName{Name: "last"}) || time.Since(began) > 0 {
			t.Errorf("%v after %v", r, time.Since(began))
		}
	})
}
