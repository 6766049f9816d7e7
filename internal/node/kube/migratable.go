package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// maxCondition bounds the text kept of a condition, which others may write.
const maxCondition = 1024

// shownVerdict returns the condition LiveMigratable of a VMI's status.
func shownVerdict(status json.RawMessage) migratable.Verdict {
	var s kubevirt.VirtualMachineInstanceStatus
	_ = json.Unmarshal(status, &s) // a status of another type shows nothing
	for _, c := range s.Conditions {
		if c.Type == kubevirt.LiveMigratable {
			return migratable.Verdict{Status: cut(c.Status, maxLabel), Reason: cut(c.Reason, maxLabel), Message: cut(c.Message, maxCondition)}
		}
	}
	return migratable.Verdict{}
}

// OfNode implements migratable.VMIs.
func (s *Source) OfNode() []migratable.VMI {
	launchers, live := map[key]migratable.Launcher{}, map[key]bool{}
	s.pods.all(func(p pod) {
		if !p.Done {
			live[p.of] = live[p.of] || !p.Deleting && !p.target
			launchers[p.of] = p.bonds.with(launchers[p.of])
		}
	})
	var all []migratable.VMI
	s.vmis.all(func(v vmi) {
		if v.State != grace.VMIDeleting {
			all = append(all, migratable.VMI{Namespace: v.name.namespace, Name: v.name.name, UID: v.UID, Shown: v.migratable, Launcher: launchers[v.name], Launched: live[v.name]})
		}
	})
	return all
}

// Event implements migratable.VMIs.
func (s *Source) Event(v migratable.VMI, reason, message string) {
	s.Report(agent.Event{Namespace: v.Namespace, Name: v.Name, UID: v.UID, Reason: reason, Message: message, Warning: true, At: time.Now().UTC()})
}

// SetLiveMigratable implements migratable.VMIs. It does not write to a VMI that was replaced
// or is on another node.
func (s *Source) SetLiveMigratable(ctx context.Context, v migratable.VMI, is migratable.Verdict) error {
	if err := s.writes.take(grace.DomainName(v.Namespace, v.Name)); err != nil {
		return fmt.Errorf("set the condition LiveMigratable: %w", err)
	}
	o, err := s.get(ctx, vmis(), key{v.Namespace, v.Name})
	if err != nil {
		return err
	}
	patch, err := s.migratablePatch(o, v, is)
	if err != nil || patch == nil {
		return err
	}
	if err := s.patchStatus(ctx, vmis(), key{v.Namespace, v.Name}, types.JSONPatchType, patch); err != nil {
		return fmt.Errorf("set the condition LiveMigratable: %w", err)
	}
	return nil
}

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// migratablePatch returns a patch of the condition in o that keeps the condition's unknown
// fields. It is nil if the VMI was replaced, is elsewhere, has ended or is being deleted.
func (s *Source) migratablePatch(o *object, v migratable.VMI, is migratable.Verdict) ([]operation, error) {
	var now kubevirt.VirtualMachineInstance
	status := &now.Status
	_ = json.Unmarshal(o.Status, status) // unreadable JSON counts as empty
	if now.Final() || string(o.UID) != v.UID || o.Labels[kubevirt.NodeNameLabel] != s.node || cmp.Or(status.NodeName, s.node) != s.node || o.DeletionTimestamp != nil {
		return nil, nil
	}
	steps := []operation{{"test", "/metadata/resourceVersion", o.ResourceVersion}}
	at := slices.IndexFunc(status.Conditions, func(c kubevirt.Condition) bool { return c.Type == kubevirt.LiveMigratable })
	if at >= 0 {
		condition, err := conditionAt(o.Status, at)
		if err != nil {
			return nil, err
		}
		write(condition, is)
		return append(steps, operation{"replace", fmt.Sprintf("/status/conditions/%d", at), condition}), nil
	}
	condition := map[string]any{"type": kubevirt.LiveMigratable}
	write(condition, is)
	switch all := []map[string]any{condition}; {
	case len(o.Status) == 0:
		steps = append(steps, operation{"add", "/status", map[string]any{"conditions": all}})
	case len(status.Conditions) == 0:
		steps = append(steps, operation{"add", "/status/conditions", all})
	default:
		steps = append(steps, operation{"add", "/status/conditions/-", condition})
	}
	return steps, nil
}

// conditionAt returns a condition with all its fields.
func conditionAt(status json.RawMessage, at int) (map[string]any, error) {
	var members struct {
		Conditions []map[string]any `json:"conditions"`
	}
	// Unlike the standard library, kjson matches keys exactly and keeps integers as they
	// are. An item of another type keeps its place, so the error alone does not matter.
	if err := kjson.Unmarshal(status, &members); len(members.Conditions) <= at {
		return nil, fmt.Errorf("%w: status.conditions: %w", errNotAPIServer, err)
	}
	return members.Conditions[at], nil
}

// write changes a condition to this verdict.
func write(c map[string]any, is migratable.Verdict) {
	now := time.Now().UTC().Format(time.RFC3339)
	if c["status"] != is.Status {
		c["lastTransitionTime"] = now
	}
	c["status"], c["lastProbeTime"] = is.Status, now
	for field, value := range map[string]string{"reason": is.Reason, "message": is.Message} {
		if c[field] = value; value == "" {
			delete(c, field)
		}
	}
}
