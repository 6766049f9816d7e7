//go:build !unit

package evictions

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func (v *vm) changePod(patch string) { v.Helper(); v.Change(v.launcherPod(), patch) }

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
	for name, owners := range map[string][]metav1.OwnerReference{"hp-volume-nobodys": nil, "hp-volume-former": {other}, "hp-volume-two": {owner, other}} {
		volume(name, owners...)
		if a := v.evictPod(name); a.code != 0 {
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
