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
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

func TestFiftyEvictionsMakeOneMark(t *testing.T) {
	all := replicas(t, 2)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.budget()
	before := counted(all, "vmgrace_evictions_total", `verdict="marked"`)
	answers := make([]answer, 50)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = v.evict() })
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
	if !v.podThere() || v.get().Status.EvacuationNodeName != "node-a" {
		t.Error("evicted, or not marked")
	}
}

func TestOrphansNeverBlockADrain(t *testing.T) {
	replicas(t, 1)
	for name, orphan := range map[string]func(*vm){
		"VMI gone": (*vm).delete,
		"VMI deleting": func(v *vm) {
			vmi := v.get()
			v.Change(vmi, `{"metadata":{"finalizers":["vmgrace.io/test"]}}`)
			v.delete()
			t.Cleanup(func() { kit.Must(t, shared.Patch(rig.After(t), vmi, rig.Merge(`{"metadata":{"finalizers":null}}`))) })
		},
		"another VMI of the name":       (*vm).anew,
		"pod without a name of its VMI": func(v *vm) { v.changePod(`{"metadata":{"annotations":{"kubevirt.io/domain":null}}}`) },
		"no launcher":                   func(v *vm) { v.changePod(`{"metadata":{"labels":{"kubevirt.io":null}}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVM(t, vm{strategy: "LiveMigrate"})
			orphan(v)
			if a := v.evict(); a.code != 0 {
				t.Errorf("%+v, want it to be allowed", a)
			}
		})
	}
}

func (v *vm) changePod(patch string) { v.Helper(); v.Change(v.launcherPod(), patch) }

func TestAMigrationsTargetNeverMarks(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, podNode: "node-b"})
	if a := v.evict(); a.code != 0 || v.get().Status.EvacuationNodeName != "" {
		t.Errorf("%+v, %+v", a, v.get().Status)
	}
}

func TestACordonedNodeIsNoted(t *testing.T) {
	replicas(t, 1)
	for name, spec := range map[string]corev1.NodeSpec{
		"cordoned": {Unschedulable: true},
		"tainted":  {Taints: []corev1.Taint{{Key: "kubevirt.io/drain", Effect: corev1.TaintEffectNoSchedule}}},
		"neither":  {},
	} {
		shared.In(t, "").Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, "")
		v := newVM(t, vm{strategy: "External", node: name})
		v.evict()
		if got := evacuation.ExplanationOf(v.get()).Cordoned; got != (name != "neither") {
			t.Errorf("%s: noted as cordoned: %v", name, got)
		}
	}
}

func TestAVolumeIsNotTakenFromARunningVM(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "None"})
	owner := v.owner()[0]
	volume := func(name string, owners ...metav1.OwnerReference) {
		v.newPod(metav1.ObjectMeta{Name: name, OwnerReferences: owners, Labels: map[string]string{kubevirt.AppLabel: kubevirt.HotplugApp}})
	}
	volume("hp-volume-used", owner)
	want := "cannot evict hotplug pod: hp-volume-used associated with running vmi: " + v.name + " in namespace default"
	if a := v.evictPod("hp-volume-used"); a.code != 429 || !strings.HasSuffix(a.text, want) {
		t.Errorf("%+v, want %q", a, want)
	}
	other := owner
	other.UID = "00000000-0000-0000-0000-000000000000"
	for name, owners := range map[string][]metav1.OwnerReference{"hp-volume-nobodys": nil, "hp-volume-former": {other}} {
		volume(name, owners...)
		if a := v.evictPod(name); a.code != 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for name, gone := range map[string]func(*vm){
		"two owners":     nil,
		"VMI gone":       (*vm).delete,
		"VMI ended":      func(v *vm) { v.status(`{"phase":"Failed"}`) },
		"launcher ended": func(v *vm) { v.podStatus(`{"phase":"Succeeded"}`) },
		"launcher gone":  func(v *vm) { kit.Must(t, v.Delete(t.Context(), v.launcherPod(), client.GracePeriodSeconds(0))) },
	} {
		of := newVM(t, vm{strategy: "LiveMigrate"})
		owners := of.owner()
		if gone == nil {
			owners = []metav1.OwnerReference{owner, other}
		} else {
			gone(of)
		}
		volume("hp-volume-of-"+of.name, owners...)
		if a := of.evictPod("hp-volume-of-" + of.name); a.code != 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// owner returns the owner references of a pod that belongs to the VM's launcher pod.
func (v *vm) owner() []metav1.OwnerReference {
	v.Helper()
	launcher := v.readPod()
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: launcher.Name, UID: launcher.UID}}
}
