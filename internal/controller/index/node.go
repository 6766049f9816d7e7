package index

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Ready reports whether a node's condition Ready is True.
func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Drained reports whether a node has the drain taint (nodeDrainTaintKey).
func Drained(n *corev1.Node, taint string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == taint && t.Effect == corev1.TaintEffectNoSchedule
	})
}
