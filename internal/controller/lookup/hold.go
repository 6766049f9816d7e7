package lookup

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Disruption is the reason of a pod's condition DisruptionTarget, "" where that is
// not True.
func Disruption(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

// DisruptionOf is what a launcher pod says of its deletion, on a node that is Ready.
func DisruptionOf(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance, s kubevirt.EvictionStrategy) *evacuation.Disruption {
	return &evacuation.Disruption{
		VMI: vmi, Strategy: s, NodeReady: true,
		Deleting: p.DeletionTimestamp != nil, Reason: Disruption(p), HoldFor: p.Annotations[evacuation.HoldForAnnotation],
	}
}

// Held reports whether the agent of the launcher's node holds its shutdown, or will,
// until the VM was moved. A VMI that is not known (nil) tells no cause.
func Held(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) bool {
	cause := ""
	if vmi != nil && vmi.Marked() {
		cause = vmi.Annotations[evacuation.CauseAnnotation]
	}
	return p.DeletionTimestamp != nil && evacuation.HoldReason(p.Annotations[evacuation.HoldForAnnotation], Disruption(p), cause) != ""
}

// HeldUntil is the latest moment of a shutdown that is held, zero if none is.
func HeldUntil(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) time.Time {
	if !Held(p, vmi) || p.DeletionGracePeriodSeconds == nil {
		return time.Time{}
	}
	return evacuation.HeldUntil(p.DeletionTimestamp.Time, *p.DeletionGracePeriodSeconds,
		p.Annotations[evacuation.ReserveAnnotation], p.Annotations[evacuation.AllowanceAnnotation])
}
