package migration

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// wanted is the input of targetPod.
type wanted struct {
	migration *object
	vmi       *kubevirt.VirtualMachineInstance
	settings  evacuation.Settings
	avoid     []string // nodes at which the last migrations have failed
}

// targetPod returns a copy of the source pod for another node. It has what a user writes,
// without what the cluster has written since (migration.RunTimeKey, setByCluster). It computes
// the launcher's grace period as the launcher webhook does, which may not be asked.
func targetPod(w wanted, source *corev1.Pod) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.migration.Namespace, Name: migration.TargetPodName(w.vmi.Name, string(w.migration.UID)),
			Labels: migration.Copied(source.Labels), Annotations: migration.CopiedAnnotations(source.Annotations, writers(source.ManagedFields)),
			OwnerReferences: owners(w.vmi, source.OwnerReferences),
		},
		Spec: *source.Spec.DeepCopy(),
	}
	p.Labels[kubevirt.MigrationJobLabel] = string(w.migration.UID)
	for _, f := range setByCluster() {
		f.unset(&p.Spec)
	}
	grace := evacuation.GraceFor(w.vmi, source.Spec.TerminationGracePeriodSeconds, &w.settings)
	p.Spec.TerminationGracePeriodSeconds = &grace.Seconds
	maps.Copy(p.Annotations, grace.Annotations)
	setIncoming(p, string(w.migration.UID))

	selector, added := migration.Selector(source.Spec.NodeSelector, w.migration.Spec.AddedNodeSelector, source.Annotations[migration.AddedSelectorAnnotation])
	p.Spec.NodeSelector = selector
	if added != "" {
		p.Annotations[migration.AddedSelectorAnnotation] = added
	}
	addAntiAffinity(&p.Spec, w.vmi)
	preferTakers(&p.Spec)
	avoid(&p.Spec, w.avoid)
	return p
}

// owners returns the source pod's owners and the VMI. blockOwnerDeletion needs a right to each
// owner's finalizers where the API server enforces that, and a launcher does not need it.
func owners(vmi *kubevirt.VirtualMachineInstance, source []metav1.OwnerReference) []metav1.OwnerReference {
	all := slices.Clone(source)
	for i := range all {
		all[i].BlockOwnerDeletion = nil
	}
	if slices.ContainsFunc(all, func(o metav1.OwnerReference) bool { return o.UID == vmi.UID }) {
		return all
	}
	return append(all, metav1.OwnerReference{
		APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance", Name: vmi.Name, UID: vmi.UID,
	})
}

// clusterField is a field of a pod's spec that the cluster sets, and sets again for a copy.
type clusterField struct {
	name, setBy string
	unset       func(*corev1.PodSpec)
}

// setByCluster returns the fields that a copy must not have. Other fields that admission has
// set (default tolerations, default resources, the service account) stay: admission would set
// the same again, and a user may have set them.
func setByCluster() []clusterField {
	return []clusterField{
		{"nodeName", "scheduler", func(s *corev1.PodSpec) { s.NodeName = "" }},
		{"priority", "admission, from priorityClassName", func(s *corev1.PodSpec) { s.Priority = nil }},
		{"preemptionPolicy", "admission, from priorityClassName", func(s *corev1.PodSpec) { s.PreemptionPolicy = nil }},
		{"overhead", "admission, from runtimeClassName", func(s *corev1.PodSpec) { s.Overhead = nil }},
		{"schedulingGates", "admission: those of the source pod are gone", func(s *corev1.PodSpec) { s.SchedulingGates = nil }},
		{"ephemeralContainers", "kubectl debug", func(s *corev1.PodSpec) { s.EphemeralContainers = nil }},
		{"volume " + tokenVolume + "*", "admission, from serviceAccountName", dropToken},
		{"keys of matchLabelKeys in the selectors beside them", "the API server, from the labels of the source pod", unmerge},
		{"affinity to the nodes of former failures", "the migration of the source pod", dropAvoidance},
	}
}

// tokenVolume is the prefix of the volume with a service account's token.
const tokenVolume = "kube-api-access-"

func dropToken(s *corev1.PodSpec) {
	injected := map[string]bool{}
	s.Volumes = slices.DeleteFunc(s.Volumes, func(v corev1.Volume) bool {
		token := strings.HasPrefix(v.Name, tokenVolume) && v.Projected != nil
		if token {
			injected[v.Name] = true
		}
		return token
	})
	for _, containers := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range containers {
			containers[i].VolumeMounts = slices.DeleteFunc(containers[i].VolumeMounts, func(m corev1.VolumeMount) bool { return injected[m.Name] })
		}
	}
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

// preferTakers makes the scheduler prefer nodes whose agent takes migrations.
func preferTakers(spec *corev1.PodSpec) {
	term := corev1.PreferredSchedulingTerm{Weight: takersWeight, Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: migration.TakesMigrationsLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{migration.TakesMigrations}}},
	}}
	terms := preferred(spec)
	if !slices.ContainsFunc(*terms, func(t corev1.PreferredSchedulingTerm) bool { return reflect.DeepEqual(t, term) }) {
		*terms = append(*terms, term) // else the source has it, from an earlier migration or its user
	}
}

// takersWeight is less than avoidWeight: a node at which a migration has failed comes after
// one without the label.
const takersWeight = 50

// preferred returns the preferred node affinity. spec.Affinity is not nil.
func preferred(spec *corev1.PodSpec) *[]corev1.PreferredSchedulingTerm {
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	return &spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
}

// nodeField is the field by which an affinity matches a node's name.
const nodeField = "metadata.name"

// avoid makes the scheduler prefer other nodes. dropAvoidance recognizes the term by its form,
// which only this controller uses.
func avoid(spec *corev1.PodSpec, nodes []string) {
	for _, node := range nodes {
		terms := preferred(spec)
		*terms = append(*terms, corev1.PreferredSchedulingTerm{Weight: avoidWeight, Preference: corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: nodeField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node}}},
		}})
	}
}

// avoidWeight is the greatest weight that the API server accepts.
const avoidWeight = 100

func dropAvoidance(s *corev1.PodSpec) {
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil {
		return
	}
	terms := &s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	*terms = slices.DeleteFunc(*terms, func(t corev1.PreferredSchedulingTerm) bool {
		p := t.Preference
		return t.Weight == avoidWeight && len(p.MatchExpressions) == 0 && len(p.MatchFields) == 1 &&
			p.MatchFields[0].Key == nodeField && p.MatchFields[0].Operator == corev1.NodeSelectorOpNotIn
	})
	if len(*terms) == 0 {
		*terms = nil
		if s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
			s.Affinity.NodeAffinity = nil
		}
	}
}

// writers returns who has written a pod.
func writers(all []metav1.ManagedFieldsEntry) []migration.Writer {
	by := make([]migration.Writer, len(all))
	for i := range all {
		by[i] = migration.Writer{Manager: all[i].Manager, Applied: all[i].Operation == metav1.ManagedFieldsOperationApply, Fields: all[i].FieldsV1.GetRawString()}
	}
	return by
}
