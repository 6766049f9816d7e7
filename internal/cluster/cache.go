package cluster

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/virthandler"
	"github.com/vmgrace/vmgrace/internal/cluster/webhookcerts"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// cacheOptions restricts the watches to objects that are read, and the cache to fields that
// are read.
func (o *Options) cacheOptions() cache.Options {
	ours := fields.OneTermEqualSelector("metadata.name", webhookcerts.Name)
	return cache.Options{
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            stripped,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{o.Namespace: {FieldSelector: ours}}},
			&admissionregistrationv1.ValidatingWebhookConfiguration{}: {Field: ours},
			&admissionregistrationv1.MutatingWebhookConfiguration{}:   {Field: ours},
			&corev1.Pod{}:                      {Label: labels.SelectorFromSet(labels.Set{kubevirt.AppLabel: kubevirt.LauncherApp}), Transform: strippedPod},
			&appsv1.DaemonSet{}:                {Label: labels.SelectorFromSet(labels.Set{kubevirt.AppLabel: virthandler.App})},
			&corev1.Node{}:                     {Transform: strippedNode},
			&kubevirt.VirtualMachineInstance{}: {Transform: strippedVMI},
			&policyv1.PodDisruptionBudget{}:    {Transform: strippedBudget},
		},
	}
}

// stripped removes fields that are read of no object.
func stripped(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil {
		m.SetManagedFields(nil)
		if a := m.GetAnnotations(); a[lastApplied] != "" {
			delete(a, lastApplied)
		}
	}
	return object, nil
}

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

func strippedPod(object any) (any, error) {
	if p, ok := object.(*corev1.Pod); ok {
		stripMeta(&p.ObjectMeta)
		p.OwnerReferences = nil
		p.Spec = corev1.PodSpec{
			NodeName: p.Spec.NodeName, TerminationGracePeriodSeconds: p.Spec.TerminationGracePeriodSeconds, Tolerations: p.Spec.Tolerations,
		}
		p.Status = corev1.PodStatus{
			Phase: p.Status.Phase, Reason: p.Status.Reason, Conditions: readConditions(p.Status.Conditions), ContainerStatuses: failed(p.Status.ContainerStatuses),
		}
	}
	return stripped(object)
}

// readConditions returns the conditions of a pod that are read.
func readConditions(all []corev1.PodCondition) []corev1.PodCondition {
	return slices.Clone(slices.DeleteFunc(all, func(c corev1.PodCondition) bool {
		return c.Type != corev1.DisruptionTarget && c.Type != corev1.PodReady && c.Type != corev1.PodScheduled
	}))
}

// failed returns how the containers of a pod have failed, or were destroyed.
func failed(all []corev1.ContainerStatus) (some []corev1.ContainerStatus) {
	for _, c := range all {
		if t := c.State.Terminated; t != nil && (t.ExitCode != 0 || t.Message == launcherpod.EndForced) {
			is := &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, Reason: t.Reason}
			if t.Message == launcherpod.EndForced {
				is.Message = launcherpod.EndForced
			}
			some = append(some, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{Terminated: is}})
		}
	}
	return some
}

func strippedVMI(object any) (any, error) {
	if v, ok := object.(*kubevirt.VirtualMachineInstance); ok {
		stripMeta(&v.ObjectMeta)
		v.OwnerReferences = nil
		v.Labels = only(v.Labels, func(key string) bool { return key == kubevirt.NodeNameLabel || key == kubevirt.MigrationTargetLabel })
		// Keep all, in order: a patch addresses one by its index.
		v.Status.Conditions = slices.Clone(v.Status.Conditions)
		var others []metav1.ManagedFieldsEntry
		for _, m := range v.ManagedFields {
			if index.WritesPhase(m) {
				others = append(others, m)
			}
		}
		defer v.SetManagedFields(others) // the others go
	}
	return stripped(object)
}

func strippedBudget(object any) (any, error) {
	if b, ok := object.(*policyv1.PodDisruptionBudget); ok {
		stripMeta(&b.ObjectMeta)
		b.Status = policyv1.PodDisruptionBudgetStatus{}
	}
	return stripped(object)
}

// stripMeta removes metadata that is not read of any kind.
func stripMeta(m *metav1.ObjectMeta) {
	m.Finalizers, m.GenerateName = nil, ""
	m.Annotations = only(m.Annotations, isReadAnnotation)
}

// only returns the entries that are read, nil if there are none: an empty map takes memory.
func only(all map[string]string, read func(key string) bool) (kept map[string]string) {
	for key, value := range all {
		if read(key) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}

func isReadAnnotation(annotation string) bool {
	switch annotation {
	case kubevirt.DomainAnnotation, kubevirt.EvictionSourceAnnotation, kubevirt.RequestEvictOnlyAnnotation, kubevirt.EvictionInProgressAnnotation:
		return true
	default:
		return strings.HasPrefix(annotation, v1alpha1.Group+"/")
	}
}

func strippedNode(object any) (any, error) {
	if n, ok := object.(*corev1.Node); ok {
		n.Spec = corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable, Taints: n.Spec.Taints}
		n.Status = corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: n.Status.NodeInfo.BootID}, Conditions: slices.Clone(slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type != corev1.NodeReady
		}))}
		n.Labels = nil
		n.Annotations = only(n.Annotations, func(key string) bool { return key == migration.FencedAnnotation })
	}
	return stripped(object)
}
