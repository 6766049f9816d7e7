package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/certs"
)

// cacheOptions: only what is read is watched, and only of that is kept what is
// read. An object is watched from the first time on that somebody asks for its
// kind.
func (o *Options) cacheOptions() cache.Options {
	ours := fields.OneTermEqualSelector("metadata.name", certs.Name)
	return cache.Options{
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            stripped,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{o.Namespace: {FieldSelector: ours}}},
			&admissionregistrationv1.ValidatingWebhookConfiguration{}: {Field: ours},
			&admissionregistrationv1.MutatingWebhookConfiguration{}:   {Field: ours},
			&corev1.Pod{}:  {Label: labels.SelectorFromSet(labels.Set{kubevirt.AppLabel: kubevirt.LauncherApp}), Transform: strippedPod},
			&corev1.Node{}: {Transform: strippedNode},
		},
	}
}

// stripped drops what nobody reads of any object.
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
		p.Spec = corev1.PodSpec{
			NodeName: p.Spec.NodeName, TerminationGracePeriodSeconds: p.Spec.TerminationGracePeriodSeconds, Tolerations: p.Spec.Tolerations,
		}
		p.Status = corev1.PodStatus{Phase: p.Status.Phase, Conditions: p.Status.Conditions}
	}
	return stripped(object)
}

func strippedNode(object any) (any, error) {
	if n, ok := object.(*corev1.Node); ok {
		n.Spec = corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable, Taints: n.Spec.Taints}
		n.Status = corev1.NodeStatus{Conditions: readiness(n.Status.Conditions)}
		n.Annotations, n.Labels = nil, nil
	}
	return stripped(object)
}

func readiness(all []corev1.NodeCondition) []corev1.NodeCondition {
	for i := range all {
		if all[i].Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: all[i].Type, Status: all[i].Status}}
		}
	}
	return nil
}
