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

	"github.com/vmgrace/vmgrace/test/kit"
)

// inTree returns a change that gives a pod a volume of an in-tree plugin, which is attached to a node.
func inTree(t *testing.T, on, name string) func(*corev1.Pod) {
	t.Helper()
	pv, quantity := on+"-"+name, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	kit.Must(t, shared.Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: corev1.PersistentVolumeSpec{
		Capacity: quantity, AccessModes: modes,
		PersistentVolumeSource: corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-" + on}},
	}}))
	kit.Must(t, shared.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pv}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: pv, Resources: corev1.VolumeResourceRequirements{Requests: quantity},
	}}))
	attach(t, pv, on)
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pv},
		}})
	}
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
func attachInline(t *testing.T, on string) {
	t.Helper()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: on + "-inline"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "mock.csi", NodeName: on, Source: storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "mock.csi", VolumeHandle: "i"}},
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

// Given a pod with a volume of an in-tree plugin that a CSI driver has replaced, and the
// volumes of nobody here. When the pod comes back on another node under the same name, then
// vmdrain waits until the pod's volume is attached there, and ignores the other volumes.
// Otherwise it would drain the next pod too early, or wait for a volume that is not the
// pod's.
func TestAPodThatComesBackElsewhereUnderTheSameName(t *testing.T) {
	on, other := newNode(t), newNode(t)
	attach(t, "foreign-"+on, on)
	attachInline(t, on)
	change := inTree(t, on, "p")
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
