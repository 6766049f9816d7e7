package index

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
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

// Tainted reports whether a node has a taint NoSchedule by which somebody may empty it. Kubernetes' own
// are none, nor are those that a launcher tolerates by their keys: they keep others off its node.
func Tainted(n *corev1.Node, launchers []corev1.Pod) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		domain, _, _ := strings.Cut(t.Key, "/")
		return t.Effect == corev1.TaintEffectNoSchedule && domain != "node.kubernetes.io" && domain != "node.cloudprovider.kubernetes.io" &&
			!slices.ContainsFunc(launchers, func(p corev1.Pod) bool { return tolerates(byKey(p.Spec.Tolerations), &t) })
	})
}

// Fenced returns what declares a node dead, or "". The annotation counts for the boot that it
// names: the last one that kubelet has reported.
func Fenced(n *corev1.Node) string {
	if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == migration.FencedTaint }) {
		return "taint " + migration.FencedTaint
	}
	if boot := n.Annotations[migration.FencedAnnotation]; boot != "" && boot == n.Status.NodeInfo.BootID {
		return "annotation " + migration.FencedAnnotation + " of boot " + boot
	}
	return ""
}

// LostSince returns when a node that is not Ready stopped to be; zero if that is unknown.
func LostSince(n *corev1.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// Tolerates reports whether a pod tolerates a taint without a time limit.
func Tolerates(p *corev1.Pod, taint *corev1.Taint) bool {
	return tolerates(p.Spec.Tolerations, taint)
}

// byKey returns the tolerations that are not of all keys.
func byKey(all []corev1.Toleration) []corev1.Toleration {
	return slices.DeleteFunc(slices.Clone(all), func(t corev1.Toleration) bool { return t.Key == "" })
}

func tolerates(all []corev1.Toleration, taint *corev1.Taint) bool {
	quiet := klog.NewKlogr().V(10)
	for i := range all {
		if t := &all[i]; t.TolerationSeconds == nil && t.ToleratesTaint(quiet, taint, true) {
			return true
		}
	}
	return false
}
