package migration

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// podFacts returns a launcher pod's inputs of migration.Next.
func podFacts(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) *migration.Pod {
	out := &migration.Pod{
		Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		Runs:     p.Status.Phase == corev1.PodRunning,
		Ended:    index.Ended(p),
		Deleting: p.DeletionTimestamp != nil,
		Held:     index.Held(p, vmi),
		InTime:   index.InTime(p, vmi),
		Lingers:  p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds > emptyGraceSeconds,
		Created:  p.CreationTimestamp.Time,
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			out.Unschedulable, out.Since = cmp.Or(c.Message, c.Reason, "the scheduler does not say why"), c.LastTransitionTime.Time
			if out.Since.IsZero() {
				out.Since = out.Created
			}
		}
	}
	return out
}

// setIncoming tells the launcher in a target pod which migration's guest it waits for. It
// replaces what a former migration has told the source pod.
func setIncoming(p *corev1.Pod, uid string) {
	p.Annotations[migration.IncomingAnnotation] = uid
	for n, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			c := &containers[i]
			c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == launcherpod.IncomingVariable })
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == launcherpod.DirectoryVolume }) {
				c.Env = append(c.Env, corev1.EnvVar{Name: launcherpod.IncomingVariable, Value: uid})
				if n == 1 {
					c.StartupProbe, c.LivenessProbe = nil, nil // the pod's other containers would wait for a sidecar's
				} else {
					waitForGuest(c)
				}
			}
		}
	}
}

// waitForGuest keeps a launcher's probes from ending it before its guest has arrived: kubelet asks
// the others only once the startup probe has succeeded, and this one asks for what the liveness
// probe does, and never gives up. The pod cannot be changed later, so it stays so.
func waitForGuest(c *corev1.Container) {
	if c.LivenessProbe != nil {
		c.StartupProbe = c.LivenessProbe.DeepCopy()
	}
	if c.StartupProbe != nil {
		c.StartupProbe.FailureThreshold = math.MaxInt32
	}
}
