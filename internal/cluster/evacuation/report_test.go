package evacuation

import (
	"log/slog"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// A patch addresses a condition by its index. If the VMI has changed since it was
// read, the condition that now has this index must stay.
func TestAConditionOfAVMIThatChangedSinceStays(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kubevirt.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	vmi := &kubevirt.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "u", Annotations: map[string]string{evacuation.CordonedAnnotation: "true"}},
		Status: kubevirt.VirtualMachineInstanceStatus{NodeName: "a", Conditions: []kubevirt.Condition{
			{Type: "Other"}, {Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionTrue}, {Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue},
		}},
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(vmi).WithObjects(vmi).Build()
	read := &kubevirt.VirtualMachineInstance{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(vmi), read); err != nil {
		t.Fatal(err)
	}
	now := read.DeepCopy()
	now.Status.Conditions = now.Status.Conditions[1:]
	if err := api.Status().Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}

	r := &reconciler{Config: Config{Log: slog.New(slog.DiscardHandler)}, Client: api}
	err := r.report(t.Context(), &move.VM{Evacuee: evacuation.Evacuee{VMI: read}}, evacuation.Step{})
	if !apierrors.IsConflict(err) {
		t.Errorf("%v, want a conflict", err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(vmi), now); err != nil || now.Condition(kubevirt.LiveMigratable) == nil {
		t.Errorf("%v; the VMI has lost a condition of another's: %+v", err, now.Status.Conditions)
	}
}
