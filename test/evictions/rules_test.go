//go:build !unit

package evictions

import (
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/evacuation"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestFiftyEvictionsMakeOneMark(t *testing.T) {
	all := replicas(t, 2)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.budget(t)
	before := counted(all, "vmgrace_evictions_total", `verdict="marked"`)
	answers := make([]answer, 50)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = v.evict(t, nil) })
	}
	group.Wait()
	marks := 0
	for _, a := range answers {
		if strings.Contains(a.text, "Eviction triggered evacuation") {
			marks++
		}
		if a.code != 429 {
			t.Errorf("%+v, want 429", a)
		}
	}
	if got := counted(all, "vmgrace_evictions_total", `verdict="marked"`) - before; marks != 1 || got != 1 {
		t.Errorf("%d answers say that it was marked, the metric %d; want 1", marks, got)
	}
	if !v.podThere(t) || v.get(t).Status.EvacuationNodeName != "node-a" {
		t.Error("evicted, or not marked")
	}
}

func TestOrphansNeverBlockADrain(t *testing.T) {
	replicas(t, 1)
	for name, orphan := range map[string]func(*testing.T, *vm){
		"VMI gone": func(t *testing.T, v *vm) {
			t.Helper()
			kit.Must(t, shared.objects.Delete(t.Context(), v.get(t)))
		},
		"VMI deleting": func(t *testing.T, v *vm) {
			t.Helper()
			vmi := v.get(t)
			vmi.Finalizers = []string{"vmgrace.io/test"}
			kit.Must(t, shared.objects.Update(t.Context(), vmi))
			kit.Must(t, shared.objects.Delete(t.Context(), vmi))
			t.Cleanup(func() {
				patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
				kit.Must(t, shared.objects.Patch(contextOf(t), vmi, patch))
			})
		},
		"another VMI of the name": func(t *testing.T, v *vm) {
			t.Helper()
			kit.Must(t, shared.objects.Delete(t.Context(), v.get(t)))
			next := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: v.name}}
			strategy := kubevirt.StrategyLiveMigrate
			next.Spec.EvictionStrategy = &strategy
			kit.Must(t, shared.objects.Create(t.Context(), next))
		},
		"pod without a name of its VMI": func(t *testing.T, v *vm) {
			t.Helper()
			v.changePod(t, `{"metadata":{"annotations":{"kubevirt.io/domain":null}}}`)
		},
		"no launcher": func(t *testing.T, v *vm) {
			t.Helper()
			v.changePod(t, `{"metadata":{"labels":{"kubevirt.io":null}}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVM(t, vm{strategy: "LiveMigrate"})
			orphan(t, v)
			if a := v.evict(t, nil); a.code != 0 {
				t.Errorf("%+v, want it to be allowed", a)
			}
		})
	}
}

func (v *vm) changePod(t *testing.T, patch string) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: v.launcher()}}
	kit.Must(t, shared.objects.Patch(t.Context(), p, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

func TestAMigrationsTargetNeverMarks(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, podNode: "node-b"})
	if a := v.evict(t, nil); a.code != 0 || v.get(t).Status.EvacuationNodeName != "" {
		t.Errorf("%+v, %+v", a, v.get(t).Status)
	}
}

func TestACordonedNodeIsNoted(t *testing.T) {
	replicas(t, 1)
	for name, spec := range map[string]corev1.NodeSpec{
		"cordoned": {Unschedulable: true},
		"tainted":  {Taints: []corev1.Taint{{Key: "kubevirt.io/drain", Effect: corev1.TaintEffectNoSchedule}}},
		"neither":  {},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		kit.Must(t, shared.objects.Create(t.Context(), n))
		v := newVM(t, vm{strategy: "External", node: name})
		v.evict(t, nil)
		if got := v.get(t).Annotations[evacuation.CordonedAnnotation] == evacuation.Yes; got != (name != "neither") {
			t.Errorf("%s: noted as cordoned: %v", name, got)
		}
	}
}

func TestAVolumeIsNotTakenFromARunningVM(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "None"})
	owner := v.owner(t)[0]
	volume := func(name string, owners ...metav1.OwnerReference) *corev1.Pod {
		return newPod(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: v.namespace, Name: name, OwnerReferences: owners, Labels: map[string]string{kubevirt.AppLabel: kubevirt.HotplugApp},
		}, Spec: corev1.PodSpec{NodeName: "node-a"}})
	}
	volume("hp-volume-used", owner)
	want := "cannot evict hotplug pod: hp-volume-used associated with running vmi: " + v.name + " in namespace default"
	if a := evictPod(t, v.namespace, "hp-volume-used", nil); a.code != 429 || !strings.HasSuffix(a.text, want) {
		t.Errorf("%+v, want %q", a, want)
	}
	other := owner
	other.UID = "00000000-0000-0000-0000-000000000000"
	for name, owners := range map[string][]metav1.OwnerReference{"hp-volume-nobodys": nil, "hp-volume-former": {other}} {
		volume(name, owners...)
		if a := evictPod(t, v.namespace, name, nil); a.code != 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for name, gone := range map[string]func(*testing.T, *vm) []metav1.OwnerReference{
		"two owners": func(_ *testing.T, _ *vm) []metav1.OwnerReference { return []metav1.OwnerReference{owner, other} },
		"VMI gone": func(t *testing.T, v *vm) []metav1.OwnerReference {
			t.Helper()
			kit.Must(t, shared.objects.Delete(t.Context(), v.get(t)))
			return v.owner(t)
		},
		"VMI ended": func(t *testing.T, v *vm) []metav1.OwnerReference {
			t.Helper()
			v.status(t, `{"phase":"Failed"}`)
			return v.owner(t)
		},
		"launcher ended": func(t *testing.T, v *vm) []metav1.OwnerReference {
			t.Helper()
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: v.launcher()}}
			kit.Must(t, shared.objects.Status().Patch(t.Context(), p, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Succeeded"}}`))))
			return v.owner(t)
		},
		"launcher gone": func(t *testing.T, v *vm) []metav1.OwnerReference {
			t.Helper()
			owners := v.owner(t)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: v.launcher()}}
			kit.Must(t, shared.objects.Delete(t.Context(), p, client.GracePeriodSeconds(0)))
			return owners
		},
	} {
		of := newVM(t, vm{strategy: "LiveMigrate"})
		volume("hp-volume-of-"+of.name, gone(t, of)...)
		if a := evictPod(t, of.namespace, "hp-volume-of-"+of.name, nil); a.code != 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// owner is what a pod has that belongs to the VM's launcher.
func (v *vm) owner(t *testing.T) []metav1.OwnerReference {
	t.Helper()
	launcher := &corev1.Pod{}
	kit.Must(t, shared.objects.Get(t.Context(), client.ObjectKey{Namespace: v.namespace, Name: v.launcher()}, launcher))
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: launcher.Name, UID: launcher.UID}}
}
