package migrate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

func TestALauncherIsHeldOnlyForTheReasonThatItMayBe(t *testing.T) {
	const both = "PreemptionByScheduler,DeletionByTaintManager"
	for name, c := range map[string]struct {
		holdFor, reason string
		want            bool
	}{
		"preempted":           {both, "PreemptionByScheduler", true},
		"tainted away":        {both, "DeletionByTaintManager", true},
		"evicted":             {both, "EvictionByEvictionAPI", false},
		"deleted":             {both, "", false},
		"not held for that":   {"DeletionByTaintManager", "PreemptionByScheduler", false},
		"never held":          {"", "PreemptionByScheduler", false},
		"never held, deleted": {"", "", false},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}, Annotations: map[string]string{evacuation.HoldForAnnotation: c.holdFor}}}
		if c.reason != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: c.reason}}
		}
		if got := podFacts(p, nil).Held; got != c.want {
			t.Errorf("%s: held %v, want %v", name, got, c.want)
		}
	}
}

// Admission gives them anew, if the gates are still on.
func TestATargetPodIsHeldForNothingThatItsSourceWas(t *testing.T) {
	source := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		evacuation.HoldForAnnotation: "x", evacuation.ReserveAnnotation: "1", evacuation.AllowanceAnnotation: "1", evacuation.PaddingAnnotation: "1",
		"of.the/owner": "kept",
	}}}
	got := targetPod(&kubevirt.VirtualMachineInstanceMigration{}, &kubevirt.VirtualMachineInstance{}, source).Annotations
	if len(got) != 1 || got["of.the/owner"] != "kept" {
		t.Error(got)
	}
}
