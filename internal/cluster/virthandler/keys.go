package virthandler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
)

// everyKey is the option for all keys without one of their own.
const everyKey = "*"

// keysOf returns the keys of the taints for which the policy has VMs replaced.
func keysOf(policy *v1alpha1.EvacuationPolicy) (keys []string) {
	if policy.Spec.TaintReplacement == nil {
		return nil
	}
	for _, o := range policy.Spec.TaintReplacement.Options {
		if o.DurationInSeconds >= 0 {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// untolerated returns in words with which keys virt-handler does not tolerate NoExecute taints.
// Where no key is named, it is expected to tolerate any that is not Kubernetes' own.
func untolerated(virtHandler *corev1.Pod, keys []string) string {
	named := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == everyKey })
	var missing []string
	for _, key := range named {
		if !index.Tolerates(virtHandler, &corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}) {
			missing = append(missing, key)
		}
	}
	switch {
	case len(missing) > 0:
		return "the key " + strings.Join(missing, ", ")
	case len(named) == 0 && !slices.ContainsFunc(virtHandler.Spec.Tolerations, foreign):
		return "any key"
	default:
		return ""
	}
}

// foreign reports whether a toleration is of NoExecute taints of others than Kubernetes.
func foreign(t corev1.Toleration) bool {
	return t.TolerationSeconds == nil && (t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute) &&
		t.Key != "CriticalAddonsOnly" && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
}
