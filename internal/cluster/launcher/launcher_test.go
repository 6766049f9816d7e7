package launcher

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/test/kit"
)

// Given a VM of the node's libvirt, as deploy/examples/run makes it, whose launcher has failed, or
// has ended with 0 after its guest was destroyed at its deadline. Then one write says so: its phase,
// that it is not migratable, and why.
func TestTheEndOfAVMIsOnItsVMI(t *testing.T) {
	for _, c := range []struct {
		phase corev1.PodPhase
		end   corev1.ContainerStateTerminated
		why   string
	}{
		{corev1.PodFailed, corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}, "container launcher: exit code 137 (OOMKilled)"},
		{corev1.PodSucceeded, corev1.ContainerStateTerminated{Message: launcherpod.EndForced}, "its guest was destroyed at its deadline"},
	} {
		theEndIsOnTheVMI(t, c.phase, c.end, "launcher pod virt-launcher-vm has failed: "+c.why)
	}
}

func theEndIsOnTheVMI(t *testing.T, phase corev1.PodPhase, end corev1.ContainerStateTerminated, why string) {
	t.Helper()
	scheme := runtime.NewScheme()
	kit.Must(t, clientgoscheme.AddToScheme(scheme))
	kit.Must(t, kubevirt.AddToScheme(scheme))
	vmi := &kubevirt.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u", Labels: map[string]string{kubevirt.NodeNameLabel: "a"}},
		Status:     kubevirt.VirtualMachineInstanceStatus{Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "virt-launcher-vm", UID: "p", Annotations: map[string]string{kubevirt.DomainAnnotation: "vm"},
			Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "u"},
		},
		Spec: corev1.PodSpec{NodeName: "a"},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "launcher", State: corev1.ContainerState{Terminated: &end}},
			{Name: "beside", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}},
		}},
	}
	b := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(vmi).WithObjects(vmi, pod)
	kit.Must(t, index.Add(t.Context(), indexer{b}))
	kit.Must(t, index.AddNaming(t.Context(), indexer{b}))
	said := events.NewFakeRecorder(9)
	api := b.Build()
	r := &reconciler{Config: Config{Log: slog.New(slog.DiscardHandler), Live: api, Events: said}, Client: api}
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
	kit.Must(t, err)
	kit.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
	c := vmi.Condition(kubevirt.LiveMigratable)
	if got, want := fmt.Sprint(vmi.Status.Phase, vmi.Status.NodeName, *vmi.Status.Launcher, c.Status, c.Reason, c.Message),
		fmt.Sprint(kubevirt.VMIFailed, "a", kubevirt.Launcher{Pod: pod.Name, PodUID: "p"}, "False", kubevirt.ReasonGuestNotRunning, "the VM has ended: "+why); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if event := <-said.Events; !strings.Contains(event, "Warning Stopped "+why) {
		t.Error(event)
	}
}

// indexer gives the fake client the indexes of the cache.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, o client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(o, field, values)
	return nil
}
