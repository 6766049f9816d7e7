package migration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/internal/evacuation"
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
