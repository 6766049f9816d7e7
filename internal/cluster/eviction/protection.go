package eviction

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// budgetsWithin bounds the reads of budgets: the webhook can answer without them.
const budgetsWithin = 4 * time.Second

// protection reads how budgets protect a launcher pod. After an error it reports no
// protection, so that the webhook refuses the eviction itself.
func (c *Config) protection(ctx context.Context, s *subject) *evacuation.Protection {
	if s.budgetsOf != s.vmi.UID {
		s.budgets, s.budgetsErr = c.ownBudgets(ctx, s.vmi)
	}
	p, err := &evacuation.Protection{}, s.budgetsErr
	if err == nil {
		p, err = c.readProtection(ctx, s)
	}
	if err != nil {
		c.Log.Warn("the disruption budgets of a marked VM cannot be read, its eviction is refused", "namespace", s.pod.Namespace, "vmi", s.vmi.Name, "err", err)
		return &evacuation.Protection{}
	}
	p.Pending, p.Ready = s.pod.Status.Phase == corev1.PodPending, readySince(s.pod) != nil
	return p
}

func (c *Config) readProtection(ctx context.Context, s *subject) (*evacuation.Protection, error) {
	ctx, cancel := context.WithTimeout(ctx, budgetsWithin)
	defer cancel()
	name, pod := evacuation.BudgetName(string(s.vmi.UID)), s.pod
	p := &evacuation.Protection{}
	for i := range s.budgets {
		b := &s.budgets[i]
		if b.Name != name || !selects(b, pod) {
			continue
		}
		p.Found, p.Observed = b.DeletionTimestamp == nil, b.Status.ObservedGeneration >= b.Generation
		p.Expected, p.Healthy, p.Desired, p.Allowed = b.Status.ExpectedPods, b.Status.CurrentHealthy, b.Status.DesiredHealthy, b.Status.DisruptionsAllowed
		p.EvictsUnhealthy = b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
	}
	if !p.Found {
		return p, nil
	}
	// A stale cache costs an answer of 500 at worst: the API server evicts no pod that two
	// budgets select.
	all := &policyv1.PodDisruptionBudgetList{}
	if err := c.Cached.List(ctx, all, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("other disruption budgets: %w", err)
	}
	for i := range all.Items {
		if b := &all.Items[i]; b.Name != name && selects(b, pod) {
			p.Others = true
		}
	}
	return p, nil
}

// selects reports whether a budget selects a pod.
func selects(b *policyv1.PodDisruptionBudget, p *corev1.Pod) bool {
	s := b.Spec.Selector
	if s == nil {
		return false
	}
	if vm := s.MatchLabels[kubevirt.CreatedByLabel]; vm != "" && vm != p.Labels[kubevirt.CreatedByLabel] {
		return false // another VM's: there may be thousands, and parsing each selector is slow
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(p.Labels))
}
