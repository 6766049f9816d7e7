package eviction

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// subject is what the answer to an eviction is decided from.
type subject struct {
	pod *corev1.Pod                      // nil if it does not exist
	vmi *kubevirt.VirtualMachineInstance // nil if the pod is of none that exists
	// descheduler means that the descheduler asks.
	descheduler bool
	// budgets has the disruption budget of the VMI with the UID budgetsOf, which is empty if it
	// was not read.
	budgets    []policyv1.PodDisruptionBudget
	budgetsErr error
	budgetsOf  types.UID
}

// known returns what the cache has of a launcher pod and its VMI, nil if that is not all.
func (c *Config) known(ctx context.Context, key client.ObjectKey) *subject {
	if !c.Synced() {
		return nil
	}
	s := &subject{pod: &corev1.Pod{}, vmi: &kubevirt.VirtualMachineInstance{}}
	if c.Cached.Get(ctx, key, s.pod) != nil {
		return nil
	}
	p := facts(s.pod)
	if evacuation.Hotplug(key.Name, s.pod.Labels[kubevirt.AppLabel]) || !p.OfVM() || c.Cached.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: p.VMI}, s.vmi) != nil {
		return nil
	}
	return s
}

// look reads a pod and its VMI from the API server. With hint, which the cache has of them, it
// reads all at once, and the VMI's budget. Where it cannot, unreadable is the answer.
func (c *Config) look(ctx context.Context, key client.ObjectKey, hint *subject) (now *subject, unreadable *evacuation.Admission) {
	now = &subject{}
	var podErr, vmiErr error
	var reads sync.WaitGroup
	var ahead *kubevirt.VirtualMachineInstance
	if hint != nil {
		reads.Go(func() { ahead, vmiErr = c.vmi(ctx, client.ObjectKeyFromObject(hint.vmi)) })
		if hint.vmi.Marked() {
			now.budgetsOf = hint.vmi.UID
			reads.Go(func() { now.budgets, now.budgetsErr = c.ownBudgets(ctx, hint.vmi) })
		}
	}
	now.pod, podErr = c.pod(ctx, key)
	reads.Wait()
	switch {
	case podErr != nil:
		return nil, new(evacuation.Unreadable("pod", podErr))
	case now.pod == nil:
		return now, nil
	}
	p := facts(now.pod)
	if !p.OfVM() {
		return now, nil
	}
	if hint == nil || hint.vmi.Name != p.VMI || vmiErr == nil && (ahead == nil || string(ahead.UID) != p.VMIUID) {
		// An orphan is one by a read that follows that of the pod: both may have been made anew.
		ahead, vmiErr = c.vmi(ctx, client.ObjectKey{Namespace: key.Namespace, Name: p.VMI})
	}
	if vmiErr != nil {
		return nil, new(evacuation.Unreadable("vmi", vmiErr))
	}
	now.vmi = ahead
	return now, nil
}

// ownBudgets reads the disruption budget of a VMI from the API server.
func (c *Config) ownBudgets(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) ([]policyv1.PodDisruptionBudget, error) {
	ctx, cancel := context.WithTimeout(ctx, budgetsWithin)
	defer cancel()
	name := evacuation.BudgetName(string(vmi.UID))
	own := &policyv1.PodDisruptionBudgetList{} // needs only the right to list that the cache needs
	if err := c.Live.List(ctx, own, client.InNamespace(vmi.Namespace), client.MatchingFields{"metadata.name": name}); err != nil {
		return nil, fmt.Errorf("disruption budget %s: %w", name, err)
	}
	return own.Items, nil
}
