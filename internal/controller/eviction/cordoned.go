package eviction

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/internal/controller/lookup"
)

// cordoned tells whether new pods stay off the node: it is to be emptied.
func (h *evictions) cordoned(ctx context.Context, name, drainTaint string) (bool, error) {
	node := &corev1.Node{}
	err := h.Live.Get(ctx, client.ObjectKey{Name: name}, node)
	switch {
	case lookup.Gone(err, name):
		return false, nil
	case apierrors.IsForbidden(err):
		return false, nil // without the right to read nodes nobody knows
	case err != nil:
		return false, fmt.Errorf("its node: %w", err)
	case node.Spec.Unschedulable:
		return true, nil
	}
	for _, t := range node.Spec.Taints {
		if t.Key == drainTaint && t.Effect == corev1.TaintEffectNoSchedule {
			return true, nil
		}
	}
	return false, nil
}
