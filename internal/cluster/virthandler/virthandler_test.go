package virthandler

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Given virt-handler with tolerations, and what moves VMs for their nodes' taints, then the
// condition names the keys that would end it.
func TestTheKeysThatEndVirtHandlerAreNamed(t *testing.T) {
	critical := corev1.Toleration{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists}
	maint := corev1.Toleration{Key: "maint", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	for name, c := range map[string]struct {
		tolerations []corev1.Toleration
		keys        []string
		gate        bool
		want        metav1.ConditionStatus // "" for none
		names       string
	}{
		"nothing moves VMs":            {[]corev1.Toleration{critical}, nil, false, "", ""},
		"as KubeVirt installs it":      {[]corev1.Toleration{critical}, nil, true, metav1.ConditionFalse, "any key"},
		"an option's key":              {[]corev1.Toleration{critical}, []string{"maint"}, false, metav1.ConditionFalse, "the key maint:"},
		"one of two":                   {[]corev1.Toleration{maint}, []string{"maint", "other"}, true, metav1.ConditionFalse, "the key other:"},
		"the named ones":               {[]corev1.Toleration{critical, maint}, []string{"maint", "*"}, true, metav1.ConditionTrue, ""},
		"the gate alone, taken care":   {[]corev1.Toleration{maint}, nil, true, metav1.ConditionTrue, ""},
		"everything":                   {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, []string{"*", "x"}, true, metav1.ConditionTrue, ""},
		"for a time only":              {[]corev1.Toleration{{Key: "maint", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(9))}}, []string{"maint"}, false, metav1.ConditionFalse, "maint"},
		"the effect of another":        {[]corev1.Toleration{{Key: "maint", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}, []string{"maint"}, false, metav1.ConditionFalse, "maint"},
		"every key, and not one known": {[]corev1.Toleration{critical}, []string{"*"}, false, metav1.ConditionFalse, "any key"},
	} {
		policy, ds := &v1alpha1.EvacuationPolicy{}, appsv1.DaemonSet{}
		policy.Spec.TaintReplacement = &v1alpha1.TaintReplacement{Options: []v1alpha1.TaintOption{{Key: "never", DurationInSeconds: -1}}}
		for _, key := range c.keys {
			policy.Spec.TaintReplacement.Options = append(policy.Spec.TaintReplacement.Options, v1alpha1.TaintOption{Key: key})
		}
		ds.Spec.Template.Spec.Tolerations = c.tolerations
		set := evacuation.Settings{}
		if c.gate {
			set.FeatureGates = []string{evacuation.GateNoExecute}
		}
		got := condition(policy, []appsv1.DaemonSet{ds}, &set)
		if got == nil && c.want == "" {
			continue
		}
		if got == nil || got.Status != c.want || !strings.Contains(got.Message, c.names) {
			t.Errorf("%s: %+v, want %s with %q", name, got, c.want, c.names)
		}
	}
	if got := condition(&v1alpha1.EvacuationPolicy{}, nil, &evacuation.Settings{FeatureGates: []string{evacuation.GateNoExecute}}); got.Status != metav1.ConditionUnknown {
		t.Errorf("no virt-handler: %+v", got)
	}
}
