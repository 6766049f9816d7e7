package move

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// indexer gives the fake client the indexes of a manager's cache.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, o client.Object, field string, of client.IndexerFunc) error {
	i.WithIndex(o, field, of)
	return nil
}

// Given KubeVirt's webhook, which refuses a second migration of a VM. The replica that is
// second waits; it reports no failure. Any other refusal is one.
func TestASecondMigrationBesideKubeVirtIsNoFailure(t *testing.T) {
	known := runtime.NewScheme()
	if err := errors.Join(kubevirt.AddToScheme(known), corev1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	strategy := kubevirt.StrategyLiveMigrate
	vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "u"}, Spec: kubevirt.VirtualMachineInstanceSpec{EvictionStrategy: &strategy}}
	vmi.Status = kubevirt.VirtualMachineInstanceStatus{Phase: kubevirt.VMIRunning, NodeName: "a", Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "virt-launcher-vm", Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "u"}}}
	refusal := ""
	b := fake.NewClientBuilder().WithScheme(known).WithObjects(vmi, pod).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewBadRequest(refusal)
		},
	})
	if err := index.AddVMs(t.Context(), indexer{b}); err != nil {
		t.Fatal(err)
	}
	c := b.Build()
	m := Migrations{Client: c, Observer: Observer{Cache: c, Settings: settings.New(c, func() bool { return false })}}
	refusal = `admission webhook "migration-create-validator.kubevirt.io" denied the request: in-flight migration detected. Active migration job (x) is currently already in progress for VMI vm.`
	if err := m.Move(t.Context(), vmi, evacuation.Explanation{Cause: evacuation.CauseNodeTaint}); !isNotNow(err) {
		t.Errorf("%v, want a *NotNowError", err)
	}
	refusal = "a policy refuses it"
	if err := m.Move(t.Context(), vmi, evacuation.Explanation{Cause: evacuation.CauseNodeTaint}); err == nil || isNotNow(err) {
		t.Errorf("%v, want a failure", err)
	}
}

func isNotNow(err error) bool {
	_, is := errors.AsType[*NotNowError](err)
	return is
}
