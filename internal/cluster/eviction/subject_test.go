package eviction

import (
	"context"
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Given a VM and its launcher that are made anew between the reads of an eviction, which are sent
// at once. When the VMI was read before it was there, then it is read again after the pod.
// Otherwise the new VM would be stopped as the orphan of a VMI that is gone.
func TestAnOrphanIsReadAfterItsPod(t *testing.T) {
	known := runtime.NewScheme()
	if err := errors.Join(kubevirt.AddToScheme(known), corev1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "new"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: "virt-launcher-vm", Annotations: map[string]string{kubevirt.DomainAnnotation: "vm"},
		Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "new"},
	}}
	for name, former := range map[string]*kubevirt.VirtualMachineInstance{
		"none was there": nil,
		"the former one": {ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "old"}},
	} {
		read, once := make(chan struct{}), sync.Once{}
		live := fake.NewClientBuilder().WithScheme(known).WithObjects(vmi, pod).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) (err error) {
				switch o := o.(type) {
				case *metav1.PartialObjectMetadata: // the kind is there
					return nil
				case *corev1.Pod:
					<-read
				case *kubevirt.VirtualMachineInstance:
					first := false
					once.Do(func() { first = true; close(read) })
					if first && former == nil {
						return apierrors.NewNotFound(schema.GroupResource{Group: kubevirt.Group, Resource: "virtualmachineinstances"}, key.Name)
					}
					if first {
						former.DeepCopyInto(o)
						return nil
					}
				}
				return c.Get(ctx, key, o, options...)
			},
		}).Build()
		c := &Config{Live: live}
		now, unreadable := c.look(t.Context(), client.ObjectKeyFromObject(pod), &subject{pod: pod, vmi: vmi})
		if unreadable != nil || now.vmi == nil || now.vmi.UID != "new" {
			t.Errorf("%s: %+v, %+v", name, now, unreadable)
		}
	}
}

// Given a launcher that is Pending. Then a container that its kubelet has started may have a guest, also
// one that has ended or is tried again; without one there is none to protect.
func TestALauncherThatHasStartedNoContainerIsKnown(t *testing.T) {
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}
	again := waiting
	again.RestartCount = 1
	runs := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	for name, c := range map[string]struct {
		status  corev1.PodStatus
		unbegun bool
	}{
		"no node yet":          {corev1.PodStatus{Phase: corev1.PodPending}, true},
		"its image is missing": {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waiting}}, true},
		"it is tried again":    {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{again}}, false},
		"a sidecar runs":       {corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{runs}}, false},
		"it runs":              {corev1.PodStatus{Phase: corev1.PodRunning}, false},
	} {
		if got := facts(&corev1.Pod{Status: c.status}).Unbegun; got != c.unbegun {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Given an autoscaler that taints a node and evicts. Then the mark remembers the taint from the
// beginning: it may be gone before a controller sees it. What is cordoned is known as such.
func TestAMarkRemembersWhatStoodOnTheNode(t *testing.T) {
	vmi := &kubevirt.VirtualMachineInstance{Status: kubevirt.VirtualMachineInstanceStatus{NodeName: "a"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "vms", Operator: corev1.TolerationOpExists}}}}
	for name, c := range map[string]struct {
		node              corev1.NodeSpec
		cordoned, tainted bool
	}{
		"nothing":       {},
		"an autoscaler": {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}}, false, true},
		"for VMs":       {corev1.NodeSpec{Taints: []corev1.Taint{{Key: "vms", Effect: corev1.TaintEffectNoSchedule}}}, false, false},
		"a cordon":      {corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}}, true, false},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: c.node}
		cfg := &Config{Cached: fake.NewClientBuilder().WithObjects(node).Build(), Nodes: true, Synced: func() bool { return true }}
		cordoned, tainted, err := cfg.emptied(t.Context(), &subject{pod: pod, vmi: vmi}, "kubevirt.io/drain")
		if err != nil || cordoned != c.cordoned || tainted != c.tainted {
			t.Errorf("%s: cordoned %v, tainted %v, %v", name, cordoned, tainted, err)
		}
	}
}
