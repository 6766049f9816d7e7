package kube

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/launcherpod/status"
	"github.com/vmgrace/vmgrace/internal/node/podcondition"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// shutdown returns the condition ShuttingDown of a pod's status.
func (s *podStatus) shutdown() podcondition.Condition {
	for _, c := range s.Conditions {
		if c.Type == status.Type {
			return podcondition.Condition{Status: cut(c.Status, maxLabel), Reason: cut(c.Reason, maxLabel), Message: cut(c.Message, maxCondition)}
		}
	}
	return podcondition.Condition{}
}

// Launchers implements podcondition.Pods.
func (s *Source) Launchers() (all []podcondition.Pod) {
	s.pods.all(func(p pod) {
		all = append(all, podcondition.Pod{
			Namespace: p.of.namespace, Name: p.name, UID: p.UID, Domain: grace.DomainName(p.of.namespace, p.of.name), Shown: p.shown, Done: p.Done,
		})
	})
	return all
}

// SetShuttingDown implements podcondition.Pods. A strategic merge patch finds the condition by
// its type, so nothing that others write is lost. The UID makes it fail for another pod of the
// name.
func (s *Source) SetShuttingDown(ctx context.Context, p podcondition.Pod, is podcondition.Condition) error {
	condition := map[string]any{"type": status.Type, "status": is.Status, "reason": is.Reason, "message": is.Message}
	if is.Status != p.Shown.Status {
		condition["lastTransitionTime"] = time.Now().UTC().Format(time.RFC3339)
	}
	patch := map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status":   map[string]any{"conditions": []any{condition}},
	}
	err := s.writes.take(p.Domain)
	if err == nil {
		err = s.patchStatus(ctx, pods(), key{p.Namespace, p.Name}, types.StrategicMergePatchType, patch)
	}
	if err != nil {
		return fmt.Errorf("set the condition %s of pod %s/%s: %w", status.Type, p.Namespace, p.Name, err)
	}
	return nil
}
