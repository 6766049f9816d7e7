//go:build !unit

package drains

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/kit"
)

// claimed returns a change that gives a pod a bound volume, which is attached to its node.
func claimed(t *testing.T, on, name string) func(*corev1.Pod) {
	t.Helper()
	return claimedFrom(t, on, name, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "mock.csi", VolumeHandle: "h-" + on + "-" + name}})
}

func claimedFrom(t *testing.T, on, name string, source corev1.PersistentVolumeSource) func(*corev1.Pod) {
	t.Helper()
	pv, quantity := on+"-"+name, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	kit.Must(t, shared.Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: corev1.PersistentVolumeSpec{
		Capacity: quantity, AccessModes: modes, PersistentVolumeSource: source,
	}}))
	kit.Must(t, shared.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pv}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: pv, Resources: corev1.VolumeResourceRequirements{Requests: quantity},
	}}))
	attach(t, pv, on)
	return uses(pv)
}

func attach(t *testing.T, pv, on string) {
	t.Helper()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: pv + "-" + on}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "mock.csi", NodeName: on, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
	}}
	kit.Must(t, shared.Create(t.Context(), a))
	a.Status.Attached = true
	kit.Must(t, shared.Status().Update(t.Context(), a))
}

// attachInline attaches a volume without a PersistentVolume, if the API server allows that.
func attachInline(t *testing.T, on, driver string) {
	t.Helper()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: on + "-inline"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: on, Source: storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "i"}},
		}},
	}}
	if err := shared.Create(t.Context(), a); err != nil && !apierrors.IsInvalid(err) {
		t.Fatal(err)
	}
}

func detach(t *testing.T, pv, on string) {
	t.Helper()
	kit.Must(t, shared.Delete(t.Context(), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: pv + "-" + on}}))
}

func TestVolumesGoOneAfterTheOther(t *testing.T) {
	on, other := newNode(t), newNode(t)
	first := newPod(t, on, "z", func(p *corev1.Pod) { claimed(t, on, "z")(p); p.Spec.PriorityClassName = "important" })
	second := newPod(t, on, "a", claimed(t, on, "a"))
	attachInline(t, on, "mock.csi")
	n := &corev1.Node{}
	kit.Must(t, shared.Get(t.Context(), client.ObjectKey{Name: on}, n))
	n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName("kubernetes.io/csi/mock.csi^h-" + on + "-z")}}
	kit.Must(t, shared.Status().Update(t.Context(), n))

	r := begin(t, on, "--reattach-timeout=1s")
	terminating(t, first)
	end(t, first)
	r.says(first.Name + ": Detaching")
	detach(t, first.Name, on) // the node's status still has it
	attach(t, first.Name, other)
	if isTerminating(t, second) || strings.Contains(r.Log(), first.Name+": Reattaching") {
		t.Error("it did not wait for the node's status")
	}
	kit.Must(t, shared.Get(t.Context(), client.ObjectKey{Name: on}, n))
	n.Status.VolumesAttached = nil
	kit.Must(t, shared.Status().Update(t.Context(), n))
	terminating(t, second)
	r.says(second.Name + ": Evicting")
	if before, _, _ := strings.Cut(r.Log(), second.Name+": Evicting"); !strings.Contains(before, first.Name+": Drained") {
		t.Error("the second one did not wait for the first")
	}
	end(t, second)
	detach(t, second.Name, on)
	r.ends(0)
	r.said("Warning: pod default/" + second.Name + ": not attached to another node after 1s")
}

// Given a pod with a volume of an in-tree plugin that a CSI driver has replaced, and the
// volume of another pod. When the pod comes back on another node under the same name, then
// vmdrain waits until the pod's volume is attached there, and ignores the other volume.
// Otherwise it would drain the next pod too early, or wait for a volume that is not the
// pod's.
func TestAPodThatComesBackElsewhereUnderTheSameName(t *testing.T) {
	on, other := newNode(t), newNode(t)
	attach(t, "foreign-"+on, on)
	change := claimedFrom(t, on, "p", corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-" + on}})
	p := newPod(t, on, "p", change)
	r := begin(t, on)
	terminating(t, p)
	end(t, p)
	newPod(t, other, "p", func(again *corev1.Pod) { change(again); again.Name, again.Labels["on"] = p.Name, on })
	r.says(p.Name + ": Detaching")
	detach(t, on+"-p", on)
	r.says(p.Name + ": Reattaching")
	attach(t, on+"-p", other)
	r.ends(0)
	if strings.Contains(r.Log(), "came back") {
		t.Errorf("it names a pod of another node:\n%s", r.Log())
	}
}
