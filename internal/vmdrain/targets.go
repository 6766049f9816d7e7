package vmdrain

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// newTargets returns a cache of the migrations' target pods that are not on a node yet. It
// is separate because the node's cache has only the node's pods.
func (c *command) newTargets() (cache.Cache, error) {
	isTarget, err := labels.NewRequirement(kubevirt.MigrationJobLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	return cache.New(c.cfg, cache.Options{
		Scheme: c.scheme, ReaderFailOnMissingInformer: true, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.NewSelector().Add(*isTarget), Field: fields.OneTermEqualSelector("spec.nodeName", "")},
		},
	})
}

// unscheduled returns why the scheduler finds no node for the target of a migration, by
// the UID of the migration.
func (n *node) unscheduled(ctx context.Context) (map[string]string, error) {
	pods, err := listCached(ctx, n.targets, &corev1.PodList{})
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if why := schedulersWords(p); why != "" {
			all[p.Labels[kubevirt.MigrationJobLabel]] = why
		}
	}
	return all, nil
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
