package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
)

// answer is a user who says yes after something has happened.
type answer struct{ after func() }

func (a answer) Read(to []byte) (int, error) {
	a.after()
	return copy(to, "y\n"), nil
}

// asked shuts down the VM n/vm, whose user answers yes once meanwhile has happened. It returns
// the objects whose deletion was asked for, with the version that each deletion insists on.
func asked(t *testing.T, conflicts int, meanwhile func(client.Client)) (deleted []string, said string, err error) {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(known), kubevirt.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "u"}}
	v.Spec.TerminationGracePeriodSeconds = new(int64(30))
	v.Status.Phase, v.Status.NodeName = kubevirt.VMIRunning, "node-a"
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "virt-launcher-vm", UID: "p",
		Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "u"}}, Spec: corev1.PodSpec{NodeName: "node-a"}}
	live := fake.NewClientBuilder().WithScheme(known).WithObjects(v, p).WithInterceptorFuncs(interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			var is client.DeleteOptions
			is.ApplyOptions(options)
			if is.Preconditions == nil || *is.Preconditions.UID != o.GetUID() {
				t.Errorf("deleted without its UID: %+v", is.Preconditions)
				return nil
			}
			deleted = append(deleted, o.GetName()+" "+*is.Preconditions.ResourceVersion)
			if conflicts--; conflicts >= 0 {
				return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), nil)
			}
			return nil
		},
	}).Build()
	var out bytes.Buffer
	s := &session{live: live, namespace: "n", Streams: Streams{Output: drain.Output{Out: &out, Err: io.Discard}, In: answer{func() { meanwhile(live) }}}}
	err = (&shutdown{}).run(t.Context(), s, []string{"vm"})
	return deleted, out.String(), err
}

// change updates the VMI.
func change(t *testing.T, how func(*kubevirt.VirtualMachineInstance)) func(client.Client) {
	t.Helper()
	return func(live client.Client) {
		v := &kubevirt.VirtualMachineInstance{}
		if err := live.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "vm"}, v); err != nil {
			t.Error(err)
		}
		how(v)
		if err := live.Update(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
}

// Given a user who takes time to answer. When the VM has changed by then so that the question
// would be another one, then nothing is deleted.
func TestWhatIsShutDownIsWhatTheUserWasAskedAbout(t *testing.T) {
	for what, how := range map[string]func(*kubevirt.VirtualMachineInstance){
		"it was made anew": func(v *kubevirt.VirtualMachineInstance) { v.UID = "another" },
		"it has moved":     func(v *kubevirt.VirtualMachineInstance) { v.Status.NodeName = "node-b" },
		"its grace period": func(v *kubevirt.VirtualMachineInstance) { v.Spec.TerminationGracePeriodSeconds = new(int64(1)) },
	} {
		deleted, _, err := asked(t, 0, change(t, how))
		if !errors.Is(err, errDeclined) || len(deleted) > 0 {
			t.Errorf("%s: %v, deleted %v", what, err, deleted)
		}
	}
	deleted, said, err := asked(t, 0, change(t, func(v *kubevirt.VirtualMachineInstance) { v.Status.Phase = kubevirt.VMISucceeded }))
	if err != nil || len(deleted) > 0 || !strings.Contains(said, "has ended already") {
		t.Errorf("it has ended: %v, deleted %v, %s", err, deleted, said)
	}
}

// Given a change of the VM that is not for the user to decide. Then the VM is deleted in the
// version that was read after the answer, and read again if that is not the last one.
func TestADeletionInsistsOnTheVersionReadAfterTheAnswer(t *testing.T) {
	label := change(t, func(v *kubevirt.VirtualMachineInstance) { v.Labels = map[string]string{"a": "b"} })
	deleted, said, err := asked(t, 1, label)
	if err != nil || strings.Join(deleted, ",") != "vm 1000,vm 1000" || !strings.HasSuffix(said, "vmi/vm deleted\n") {
		t.Errorf("%v, deleted %v, %s", err, deleted, said)
	}
}

// Given a VM whose VMI is gone, and whose launcher has 86,400 s of its deletion left. When it is
// shut down with 5 s, then its launcher is deleted again with these and the agent's margin.
func TestTheGracePeriodIsShortenedWithoutAVMI(t *testing.T) {
	known := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(known), kubevirt.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	p := launcherPod("vm", "n1", nil)
	p.Namespace, p.Finalizers, p.Labels[kubevirt.AppLabel] = "n", []string{"a/b"}, kubevirt.LauncherApp
	p.Annotations = map[string]string{kubevirt.DomainAnnotation: "vm"}
	p.Spec.TerminationGracePeriodSeconds, p.DeletionGracePeriodSeconds = new(int64(86400)), new(int64(86400))
	p.DeletionTimestamp = &metav1.Time{Time: noon()}
	other := vmi("other", "n1", kubevirt.VMIRunning)
	other.Namespace = "n"
	of := launcherPod("other", "n1", nil) // says that it is of that VM, too
	of.Namespace, of.Annotations, of.Labels[kubevirt.AppLabel] = "n", p.Annotations, kubevirt.LauncherApp
	var deleted []string
	live := fake.NewClientBuilder().WithScheme(known).WithObjects(&p, &other, &of).WithInterceptorFuncs(interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			var is client.DeleteOptions
			is.ApplyOptions(options)
			deleted = append(deleted, fmt.Sprint(o.GetName(), " ", *is.GracePeriodSeconds))
			return nil
		},
	}).Build()
	s := &session{live: live, namespace: "n", Streams: Streams{Output: drain.Output{Out: io.Discard, Err: io.Discard}}}
	if err := (&shutdown{grace: 5 * time.Second, graceSet: true, yes: true}).run(t.Context(), s, []string{"vm"}); err != nil || strings.Join(deleted, ",") != "virt-launcher-vm 7" {
		t.Errorf("%v, deleted %q", err, deleted)
	}
}
