package migrate

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// podFacts are a launcher pod's inputs of migration.Next.
func podFacts(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) *migration.Pod {
	out := &migration.Pod{
		Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		Ended:    lookup.Ended(p),
		Deleting: p.DeletionTimestamp != nil,
		Held:     lookup.Held(p, vmi),
		InTime:   lookup.InTime(p, vmi),
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

// targetPod is a copy of the source pod for another node, without what the scheduler and
// admission set: they set it again.
func targetPod(m *kubevirt.VirtualMachineInstanceMigration, vmi *kubevirt.VirtualMachineInstance, source *corev1.Pod) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: migration.TargetPodName(vmi.Name, string(m.UID)),
			Labels: maps.Clone(source.Labels), Annotations: maps.Clone(source.Annotations), OwnerReferences: slices.Clone(source.OwnerReferences),
		},
		Spec: *source.Spec.DeepCopy(),
	}
	for i := range p.OwnerReferences { // blockOwnerDeletion needs a right on the owner's finalizers
		p.OwnerReferences[i].BlockOwnerDeletion = nil
	}
	metav1.SetMetaDataLabel(&p.ObjectMeta, kubevirt.MigrationJobLabel, string(m.UID))
	for _, key := range append(evacuation.HoldAnnotations(), kubevirt.EvictionInProgressAnnotation) {
		delete(p.Annotations, key)
	}
	p.Spec.NodeName = ""
	p.Spec.Priority = nil
	p.Spec.PreemptionPolicy = nil
	p.Spec.EphemeralContainers = nil
	addAntiAffinity(&p.Spec, vmi)
	return p
}

// addAntiAffinity keeps the pod off the nodes of other launchers of its VM.
func addAntiAffinity(spec *corev1.PodSpec, vmi *kubevirt.VirtualMachineInstance) {
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
			return // the source has it from an earlier migration
		}
	}
	*terms = append(*terms, corev1.PodAffinityTerm{
		TopologyKey:   corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: uid}},
	})
}
