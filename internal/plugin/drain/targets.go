package drain

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// newTargets returns a cache of the migrations' target pods, with what TargetText needs of
// them. It is separate because the node's cache has only the node's pods.
func (c *command) newTargets() (cache.Cache, error) {
	isTarget, err := labels.NewRequirement(kubevirt.MigrationJobLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	return cache.New(c.cfg, cache.Options{
		Scheme: c.scheme, ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.NewSelector().Add(*isTarget), Transform: stripTarget},
		},
	})
}

// stripTarget drops what TargetText does not need: each VM that has ever moved has such a pod.
func stripTarget(o any) (any, error) {
	if p, is := o.(*corev1.Pod); is {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels},
			Status:     corev1.PodStatus{Phase: p.Status.Phase, Conditions: p.Status.Conditions},
		}, nil
	}
	return o, nil
}

// targetPods returns the migrations' target pods, by the UID of the migration.
func (n *node) targetPods(ctx context.Context) (map[string]*corev1.Pod, error) {
	pods, err := listCached(ctx, n.targets, &corev1.PodList{})
	if err != nil {
		return nil, err
	}
	all := map[string]*corev1.Pod{}
	for i := range pods.Items {
		p := &pods.Items[i]
		all[p.Labels[kubevirt.MigrationJobLabel]] = p
	}
	return all, nil
}

// TargetText returns what a migration in phase Scheduling waits for, by its target pod: the
// scheduler, or, once the pod runs, its turn. It is "" while the pod starts.
func TargetText(p *corev1.Pod) string {
	if why := schedulersWords(p); why != "" {
		return why
	}
	if p.Status.Phase == corev1.PodRunning {
		return "waits for its turn"
	}
	return ""
}

// schedulersWords returns the message of the condition PodScheduled if it is False.
func schedulersWords(p *corev1.Pod) string {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	return ""
}
