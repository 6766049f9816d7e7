package migrate

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// podFacts is what counts of a launcher pod.
func podFacts(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) *migration.Pod {
	out := &migration.Pod{
		Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		Ended:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Deleting: p.DeletionTimestamp != nil,
		Held:     lookup.Held(p, vmi),
		Created:  p.CreationTimestamp.Time,
	}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			out.Ready = p.Status.Phase == corev1.PodRunning
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			out.Unschedulable, out.Since = cmp.Or(c.Message, c.Reason), c.LastTransitionTime.Time
		}
	}
	return out
}

// targetPod is the source's with another place. What it was given at its own
// creation, by the scheduler or by admission, it is given anew.
func targetPod(m *kubevirt.VirtualMachineInstanceMigration, vmi *kubevirt.VirtualMachineInstance, source *corev1.Pod) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: migration.TargetPodName(vmi.Name, string(m.UID)),
			Labels: maps.Clone(source.Labels), Annotations: maps.Clone(source.Annotations), OwnerReferences: source.OwnerReferences,
		},
		Spec: *source.Spec.DeepCopy(),
	}
	metav1.SetMetaDataLabel(&p.ObjectMeta, kubevirt.MigrationJobLabel, string(m.UID))
	for _, key := range append(evacuation.HoldAnnotations(), kubevirt.EvictionInProgressAnnotation) {
		delete(p.Annotations, key)
	}
	p.Spec.NodeName = ""
	p.Spec.Priority = nil
	p.Spec.PreemptionPolicy = nil
	p.Spec.EphemeralContainers = nil
	apart(&p.Spec, vmi)
	return p
}

// apart keeps the pod from the node of any other launcher of its VM.
func apart(spec *corev1.PodSpec, vmi *kubevirt.VirtualMachineInstance) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.PodAntiAffinity == nil {
		spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	uid := string(vmi.UID)
	terms := &spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for _, t := range *terms {
		if t.TopologyKey == corev1.LabelHostname && t.LabelSelector != nil && t.LabelSelector.MatchLabels[kubevirt.CreatedByLabel] == uid {
			return // the source was a target itself
		}
	}
	*terms = append(*terms, corev1.PodAffinityTerm{
		TopologyKey:   corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: uid}},
	})
}
