package index

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Disruption returns the reason of the condition DisruptionTarget of a pod that is being
// deleted. It is empty unless the condition is True and explains the deletion.
func Disruption(p *corev1.Pod) string {
	if p.DeletionTimestamp == nil {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			evacuation.ExplainsDeletion(c.LastTransitionTime.Time, p.DeletionTimestamp.Time, p.DeletionGracePeriodSeconds) {
			return c.Reason
		}
	}
	return ""
}

// DisruptionOf returns the disruption of a launcher pod, assuming that its node is Ready.
func DisruptionOf(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance, s kubevirt.EvictionStrategy) *evacuation.Disruption {
	return &evacuation.Disruption{
		VMI: vmi, Strategy: s, NodeReady: true,
		Deleting: p.DeletionTimestamp != nil, Reason: Disruption(p), HoldFor: p.Annotations[evacuation.HoldForAnnotation],
	}
}

// Held reports whether the agent of the launcher's node holds the shutdown, or will, until
// the VM is moved. If vmi is nil, only the pod states the cause.
func Held(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) bool {
	cause := ""
	if vmi != nil {
		cause = evacuation.ExplanationOf(vmi).Cause
	}
	return p.DeletionTimestamp != nil && evacuation.HoldReason(p.Annotations[evacuation.HoldForAnnotation], Disruption(p), cause) != ""
}

// HeldUntil returns the latest begin of a held shutdown, zero if none is held.
func HeldUntil(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) time.Time {
	if !Held(p, vmi) || p.DeletionGracePeriodSeconds == nil {
		return time.Time{}
	}
	return evacuation.HeldUntil(p.DeletionTimestamp.Time, *p.DeletionGracePeriodSeconds,
		p.Annotations[evacuation.ReserveAnnotation], p.Annotations[evacuation.AllowanceAnnotation])
}

// InTime reports whether a launcher pod that is being deleted has time for a migration that
// is under way.
func InTime(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) bool {
	return p.DeletionTimestamp != nil && vmi != nil && p.DeletionGracePeriodSeconds != nil &&
		evacuation.InTime(vmi, *p.DeletionGracePeriodSeconds, p.Annotations[evacuation.ReserveAnnotation], p.Annotations[evacuation.PaddingAnnotation])
}
