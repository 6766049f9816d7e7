package evacuation

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/test/kit"
)

// indexer gives the fake client the indexes of a manager's cache.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, o client.Object, field string, of client.IndexerFunc) error {
	i.WithIndex(o, field, of)
	return nil
}

// Given an autoscaler that taints a node and evicts its VM, whose mark the controller sees. When it
// gives up and removes the taint, then the mark and its migration go, as after an uncordon. Other
// taints are no sign of that: those of Kubernetes, those that the launcher tolerates by their keys,
// and those that stay. A mark for a taint goes when another controller says so. A cordon makes
// the descheduler's mark an ordinary one.
func TestTheMarkOfAnAutoscalerThatGivesUpGoes(t *testing.T) {
	const key = "ToBeDeletedByClusterAutoscaler"
	of := func(keys ...string) (all []corev1.Taint) {
		for _, k := range keys {
			all = append(all, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule})
		}
		return all
	}
	exists := corev1.TolerationOpExists
	for name, c := range map[string]struct {
		marked, then []corev1.Taint
		tolerations  []corev1.Toleration
		cause        string
		cordon       bool // between the two
		stays        bool
	}{
		"gives up":                          {marked: of(key)},
		"has not given up":                  {marked: of(key), then: of(key), stays: true},
		"no taint":                          {stays: true},
		"on a node for VMs":                 {marked: of("vms", key), then: of("vms"), tolerations: []corev1.Toleration{{Key: "vms", Operator: exists}}},
		"a taint of such a node goes":       {marked: of("vms"), tolerations: []corev1.Toleration{{Key: "vms", Operator: exists}}, stays: true},
		"the launcher tolerates everything": {marked: of(key), tolerations: []corev1.Toleration{{Operator: exists}}},
		"Kubernetes' own":                   {marked: of("node.kubernetes.io/memory-pressure"), stays: true},
		"a preference":                      {marked: []corev1.Taint{{Key: key, Effect: corev1.TaintEffectPreferNoSchedule}}, stays: true},
		"a mark for the taint":              {marked: of(key), cause: evacuation.CauseNodeTaint, stays: true},
		"cordoned since":                    {marked: of(key), cordon: true, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			known := runtime.NewScheme()
			kit.Must(t, errors.Join(kubevirt.AddToScheme(known), corev1.AddToScheme(known)))
			strategy := kubevirt.StrategyLiveMigrate
			vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "u"}, Spec: kubevirt.VirtualMachineInstanceSpec{EvictionStrategy: &strategy}}
			vmi.Status = kubevirt.VirtualMachineInstanceStatus{
				Phase: kubevirt.VMIRunning, NodeName: "a", EvacuationNodeName: "a", Mark: &kubevirt.Mark{NodeName: "a", Cause: c.cause},
				Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}},
			}
			if c.cordon {
				vmi.Status.Mark.Source = kubevirt.EvictionSourceDescheduler
				vmi.Annotations = map[string]string{kubevirt.EvictionSourceAnnotation: kubevirt.EvictionSourceDescheduler}
			}
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a", Tolerations: c.tolerations}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			pod.ObjectMeta = metav1.ObjectMeta{Namespace: "n", Name: "virt-launcher-vm", UID: "p", Annotations: map[string]string{kubevirt.DomainAnnotation: "vm"},
				Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "u"}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{Taints: c.marked}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			b := fake.NewClientBuilder().WithScheme(known).WithStatusSubresource(vmi).WithObjects(vmi, pod, node)
			kit.Must(t, index.AddVMs(t.Context(), indexer{b}))
			api := b.Build()
			r := &reconciler{
				Config: Config{Log: slog.New(slog.DiscardHandler), Live: api, Events: events.NewFakeRecorder(100),
					Observer: move.Observer{Cache: api, Settings: settings.New(api, func() bool { return true }), Nodes: true}},
				Client: api, informs: newInforms(), withdrawn: withdrawn{vms: map[types.NamespacedName]bool{}},
			}
			decide := func() {
				t.Helper()
				for range 5 { // each write is an event
					_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
					kit.Must(t, err)
				}
			}
			decide()
			node.Spec.Taints, node.Spec.Unschedulable = c.then, c.cordon
			kit.Must(t, api.Update(t.Context(), node))
			decide()
			kit.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
			var migrations kubevirt.VirtualMachineInstanceMigrationList
			kit.Must(t, api.List(t.Context(), &migrations))
			if evacuation.ExplanationOf(vmi).Descheduler {
				t.Error("the mark is still the descheduler's")
			}
			if vmi.Marked() != c.stays || len(migrations.Items) == 1 != c.stays {
				t.Errorf("marked %v, %d migrations, want that they stay: %v; %+v", vmi.Marked(), len(migrations.Items), c.stays, vmi.Status)
			}
		})
	}
}
