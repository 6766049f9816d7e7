package migration

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unmerge takes out of a pod's label selectors what the API server has merged into them: the keys of
// matchLabelKeys and mismatchLabelKeys. It accepts no new pod that has a key in both.
func unmerge(s *corev1.PodSpec) {
	drop := func(from *metav1.LabelSelector, keys ...string) {
		if from != nil {
			from.MatchExpressions = slices.DeleteFunc(from.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool { return slices.Contains(keys, e.Key) })
		}
	}
	for _, c := range s.TopologySpreadConstraints {
		drop(c.LabelSelector, c.MatchLabelKeys...)
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for _, p := range preferred {
			required = append(required, p.PodAffinityTerm)
		}
		for _, t := range required {
			drop(t.LabelSelector, slices.Concat(t.MatchLabelKeys, t.MismatchLabelKeys)...)
		}
	}
	if a := s.Affinity; a != nil && a.PodAffinity != nil {
		terms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := s.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}
