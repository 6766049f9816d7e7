//go:build !unit

package drains

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// driver is the CSI driver of the volumes in this file.
const driver = cluster.CSIDriver

// controllers starts the real attach-detach controller once. It also starts what carries
// out the VolumeAttachments: the controller of the external-attacher, with a mock driver.
var controllers = sync.OnceValue(func() error {
	if err := shared.StartControllers("persistentvolume-attach-detach-controller"); err != nil {
		return err
	}
	started, err := shared.StartAttacher(shared.Dir)
	for _, p := range started {
		atEnd = append(atEnd, p.Kill)
	}
	return err
})

// volume makes a volume of the driver and a claim bound to it, and returns their name.
func volume(t *testing.T, name string) string {
	t.Helper()
	quantity := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, VolumeName: name, StorageClassName: new(string), Resources: corev1.VolumeResourceRequirements{Requests: quantity}}}
	kit.Must(t, shared.Create(t.Context(), claim))
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: quantity, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
	}}
	kit.Must(t, shared.Create(t.Context(), pv))
	claim.Status.Phase, pv.Status.Phase = corev1.ClaimBound, corev1.VolumeBound
	kit.Must(t, shared.Status().Update(t.Context(), claim))
	kit.Must(t, shared.Status().Update(t.Context(), pv))
	return name
}

func uses(claims ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, c := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", len(p.Spec.Volumes)),
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
		}
	}
}

// csiNode makes a node on which the controller attaches volumes of the driver.
func csiNode(t *testing.T) string {
	t.Helper()
	name := newNode(t)
	shared.Kubectl(t, "annotate", "node", name, "volumes.kubernetes.io/controller-managed-attach-detach=true")
	kit.Must(t, shared.Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}}}}))
	return name
}

// attached returns the driver's volumes in the status of a node.
func attached(t *testing.T, on string) (names []string) {
	t.Helper()
	for _, v := range rig.Read[corev1.Node](shared.In(t, ""), on).Status.VolumesAttached {
		_, handle, _ := strings.Cut(string(v.Name), "^")
		names = append(names, handle)
	}
	slices.Sort(names)
	return names
}

func attachedIs(t *testing.T, on string, want ...string) {
	t.Helper()
	slices.Sort(want)
	eventually(t, fmt.Sprintf("attached to %s are %v", on, want), func() bool { return slices.Equal(attached(t, on), want) })
}

// Given pods with volumes that a cluster's own controllers attach and detach; the test
// plays only the scheduler and the kubelet. When the node is drained, then the second pod
// is evicted only after the first pod's volume is attached to the other node. Otherwise all
// volumes of the node would be detached at once.
func TestVolumesThatTheRealControllersAttachAndDetach(t *testing.T) {
	kit.Must(t, controllers())
	on, other := csiNode(t), csiNode(t)
	high, slow, shared1 := volume(t, on+"-high"), volume(t, on+"-slow"), volume(t, on+"-shared")
	pending := on + "-pending"
	kit.Must(t, shared.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pending}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(string),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}))
	attach(t, "foreign-"+on, on) // of no pod that is drained
	attachInline(t, on, driver)
	changes := map[string]func(*corev1.Pod){
		"first":  func(p *corev1.Pod) { uses(slow, shared1)(p); p.Spec.PriorityClassName = "important" },
		"second": uses(high, shared1),
		"third":  uses(pending),
	}
	pods := map[string]*corev1.Pod{}
	for name, change := range changes {
		pods[name] = newPod(t, on, name, change)
	}
	attachedIs(t, on, high, slow, shared1)

	r := begin(t, on)
	// again ends a pod and makes it anew on the other node, under the same name.
	again := func(name string) {
		t.Helper()
		end(t, pods[name])
		newPod(t, other, name, func(p *corev1.Pod) { changes[name](p); p.Name = pods[name].Name })
	}
	terminating(t, pods["third"])
	terminating(t, pods["first"])
	end(t, pods["third"])
	r.says(pods["third"].Name + ": Drained") // its claim is not bound, so no pod waits for it
	if isTerminating(t, pods["second"]) {
		t.Error("the second one did not wait for the first")
	}
	end(t, pods["first"])
	r.says(pods["first"].Name + ": Detaching: attached here: default/" + slow)
	// The second pod still uses the shared volume here, so only the slow one is detached.
	p := newPod(t, other, "first", func(p *corev1.Pod) { uses(slow)(p); p.Name = pods["first"].Name })
	terminating(t, pods["second"])
	if got := attached(t, on); slices.Contains(got, slow) {
		t.Errorf("the second one goes, and %s still has %v", on, got)
	}
	attachedIs(t, other, slow) // the node's status is written after the VolumeAttachment's
	before, _, _ := strings.Cut(r.Log(), pods["second"].Name+": Evicting")
	if !strings.Contains(before, pods["first"].Name+": Drained") {
		t.Errorf("the second one is evicted before the first is drained")
	}
	again("second")
	r.ends(0)
	attachedIs(t, on)
	attachedIs(t, other, high, slow, shared1)
	end(t, p)
}

func TestAVolumeThatIsStuckIsNamedWhenTheTimeIsOver(t *testing.T) {
	kit.Must(t, controllers())
	on := csiNode(t)
	stuck := volume(t, on+"-stuck")
	p, next := newPod(t, on, "p", uses(stuck)), newPod(t, on, "q", uses(volume(t, on+"-next")))
	attachedIs(t, on, stuck, on+"-next")
	r := begin(t, on, "--timeout=6s")
	terminating(t, p)
	end(t, p)
	r.ends(1)
	for _, want := range []string{p.Name + ": Detaching: attached here: default/" + stuck, next.Name + ": Waiting"} {
		if _, left, _ := strings.Cut(r.Log(), "--timeout is over; pods left: 2\n"); !strings.Contains(left, want) {
			t.Errorf("it does not say %q:\n%s", want, r.Log())
		}
	}
}
