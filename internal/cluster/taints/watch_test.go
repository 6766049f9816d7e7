package taints

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// queue notes what is enqueued.
type queue struct {
	requests // methods not defined here are not called

	now   int
	later time.Duration
}

func (q *queue) Add(reconcile.Request) { q.now++ }

func (q *queue) AddAfter(_ reconcile.Request, after time.Duration) { q.later = after }

// Given a node with a taint and one without. When a VM or a launcher changes that has to do with the taint, or
// with what is left of one, then all VMs are looked at immediately. After any other change that waits for half
// a minute: a migration in a cluster of thousands of VMs must not cost looks at them all.
func TestAChangeThatHasToDoWithNoTaintCanWait(t *testing.T) {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, kubevirt.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	vm := func(name, node string, change func(*kubevirt.VirtualMachineInstance)) *kubevirt.VirtualMachineInstance {
		v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}}
		v.Status.NodeName = node
		change(v)
		return v
	}
	launcher := func(vm, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "virt-launcher-" + vm, Annotations: map[string]string{kubevirt.DomainAnnotation: vm}},
			Spec: corev1.PodSpec{NodeName: node}}
	}
	nothing := func(*kubevirt.VirtualMachineInstance) {}
	marked := vm("marked", "clean", func(v *kubevirt.VirtualMachineInstance) {
		v.Status.EvacuationNodeName, v.Status.Mark = "clean", &kubevirt.Mark{NodeName: "clean", Cause: evacuation.CauseNodeTaint}
	})
	said := vm("said", "clean", func(v *kubevirt.VirtualMachineInstance) {
		v.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.NodeTaintDetected, Status: kubevirt.ConditionFalse}}
	})
	clean, tainted := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "clean"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "tainted"}}
	tainted.Spec.Taints = []corev1.Taint{{Key: "maint", Effect: corev1.TaintEffectNoSchedule}}
	r := &reconciler{Client: fake.NewClientBuilder().WithScheme(known).WithObjects(clean, tainted, marked, said).Build()}

	for name, c := range map[string]struct {
		before, after client.Object // before is nil if the object is made or deleted
		atOnce        bool
	}{
		"a VM elsewhere changes":           {vm("a", "clean", nothing), vm("a", "clean", nothing), false},
		"a VM elsewhere starts":            {nil, vm("a", "clean", nothing), false},
		"a VM of no node is made":          {nil, vm("a", "", nothing), false},
		"a VM of a node that is not known": {nil, vm("a", "unknown", nothing), false},
		"a VM comes to the taint":          {vm("a", "clean", nothing), vm("a", "tainted", nothing), true},
		"a VM leaves the taint":            {vm("a", "tainted", nothing), vm("a", "clean", nothing), true},
		"a VM with a mark of one changes":  {marked, marked, true},
		"its mark goes":                    {marked, vm("a", "clean", nothing), true},
		"a VM with a condition changes":    {said, said, true},
		"a launcher elsewhere":             {launcher("a", "clean"), launcher("a", "clean"), false},
		"a launcher that waits for a node": {nil, launcher("a", ""), false},
		"a launcher at the taint":          {nil, launcher("a", "tainted"), true},
		"the launcher of a marked VM":      {launcher("marked", "clean"), launcher("marked", "clean"), true},
		"the launcher of one that says so": {nil, launcher("said", "clean"), true},
	} {
		var h handler.EventHandler
		if _, pod := c.after.(*corev1.Pod); pod {
			h = r.concerned(r.launcherOfTaint)
		} else {
			h = r.concerned(r.ofTaint)
		}
		check := func(how string, tell func(q requests)) {
			q := &queue{}
			tell(q)
			if c.atOnce && q.now != 1 || !c.atOnce && (q.now != 0 || q.later != elsewhereAfter) {
				t.Errorf("%s, %s: at once %d, later %v", name, how, q.now, q.later)
			}
		}
		if c.before != nil {
			check("changed", func(q requests) {
				h.Update(t.Context(), event.UpdateEvent{ObjectOld: c.before, ObjectNew: c.after}, q)
			})
			continue
		}
		check("made", func(q requests) { h.Create(t.Context(), event.CreateEvent{Object: c.after}, q) })
		check("deleted", func(q requests) { h.Delete(t.Context(), event.DeleteEvent{Object: c.after}, q) })
	}
}
