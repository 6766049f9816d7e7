package cluster

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// annotations returns the annotations that are read, with two that are not.
func annotations(read map[string]string) map[string]string {
	all := map[string]string{lastApplied: "{}", "k8s.v1.cni.cncf.io/network-status": "[{}]"}
	maps.Copy(all, read)
	return all
}

func TestTheCacheKeepsOfAPodWhatIsRead(t *testing.T) {
	read := map[string]string{
		kubevirt.DomainAnnotation: "vm", kubevirt.RequestEvictOnlyAnnotation: "", kubevirt.EvictionInProgressAnnotation: "kubevirt",
		evacuation.HoldForAnnotation: "PreemptionByScheduler", evacuation.ReserveAnnotation: "30", evacuation.AllowanceAnnotation: "300", evacuation.PaddingAnnotation: "15",
	}
	labels := map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "u", "team": "a"} // a budget may select by any label
	grace, now := int64(45), metav1.Now()
	tolerations := []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}}
	conditions := []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no node"},
	}
	meta := metav1.ObjectMeta{
		Name: "p", Namespace: "n", UID: "x", ResourceVersion: "7", CreationTimestamp: now, DeletionTimestamp: &now, DeletionGracePeriodSeconds: &grace, Labels: labels,
	}
	given := &corev1.Pod{ObjectMeta: meta,
		Spec:   corev1.PodSpec{NodeName: "a", TerminationGracePeriodSeconds: &grace, Tolerations: tolerations, Containers: make([]corev1.Container, 3)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: append([]corev1.PodCondition{{Type: corev1.PodInitialized}}, conditions...), PodIP: "10.0.0.1"},
	}
	given.Annotations, given.OwnerReferences = annotations(read), []metav1.OwnerReference{{Name: "vm"}}
	given.ManagedFields, given.Finalizers = []metav1.ManagedFieldsEntry{{}}, []string{"f"}

	want := &corev1.Pod{ObjectMeta: meta,
		Spec:   corev1.PodSpec{NodeName: "a", TerminationGracePeriodSeconds: &grace, Tolerations: tolerations},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: conditions},
	}
	want.Annotations = read
	keeps(t, strippedPod, given, want)
}

func TestTheCacheKeepsOfAVMIWhatIsRead(t *testing.T) {
	read := map[string]string{evacuation.CauseAnnotation: "NodeTaint", evacuation.CordonedAnnotation: "true", kubevirt.EvictionSourceAnnotation: "descheduler"}
	meta := metav1.ObjectMeta{Name: "vm", Namespace: "n", UID: "x", ResourceVersion: "7", CreationTimestamp: metav1.Now()}
	strategy, grace := kubevirt.StrategyLiveMigrate, int64(45)
	given := &kubevirt.VirtualMachineInstance{ObjectMeta: meta,
		Spec: kubevirt.VirtualMachineInstanceSpec{EvictionStrategy: &strategy, TerminationGracePeriodSeconds: &grace},
		Status: kubevirt.VirtualMachineInstanceStatus{
			Phase: kubevirt.VMIRunning, NodeName: "a", EvacuationNodeName: "a",
			Conditions: []kubevirt.Condition{{Type: "AgentConnected"}, {Type: kubevirt.LiveMigratable, Status: "True"}}, MigrationState: &kubevirt.MigrationState{},
		},
	}
	want := given.DeepCopy() // all of its status stays: a patch names a condition by its index
	want.Annotations = read
	want.Labels = map[string]string{kubevirt.NodeNameLabel: "a", kubevirt.MigrationTargetLabel: "b"} // they show whether a move has ended
	given.Annotations = annotations(read)
	given.Labels = map[string]string{kubevirt.NodeNameLabel: "a", kubevirt.MigrationTargetLabel: "b", "team": "a"}
	given.ManagedFields, given.Finalizers = []metav1.ManagedFieldsEntry{{}}, []string{"f"}
	given.OwnerReferences = []metav1.OwnerReference{{Name: "vm"}}
	keeps(t, strippedVMI, given, want)
}

func TestTheCacheKeepsOfABudgetWhatIsRead(t *testing.T) {
	given := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Name: "b", Namespace: "n", UID: "x", ResourceVersion: "7", Labels: map[string]string{kubevirt.MigrationNameLabel: "m"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance", Name: "vm"}},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: "u"}}},
	}
	want := given.DeepCopy()
	given.Status, given.Annotations = policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1}, annotations(nil)
	if index.VMIOf(given) == nil {
		t.Fatal("the budget has no owner")
	}
	keeps(t, strippedBudget, given, want)
}

func keeps(t *testing.T, strip func(any) (any, error), given, want any) {
	t.Helper()
	got, err := strip(given)
	if err != nil || !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("the cache keeps %+v, %v\nwant %+v", got, err, want)
	}
}
