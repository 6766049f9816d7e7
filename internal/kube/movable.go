package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/transfer"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// maxCondition bounds what is kept of a condition that others may write.
const maxCondition = 1024

// shownVerdict is the condition LiveMigratable in a VMI's status.
func shownVerdict(status json.RawMessage) transfer.Verdict {
	var s kubevirt.VirtualMachineInstanceStatus
	_ = json.Unmarshal(status, &s) // one of another kind shows nothing
	for _, c := range s.Conditions {
		if c.Type == kubevirt.LiveMigratable {
			return transfer.Verdict{Status: cut(c.Status, maxLabel), Reason: cut(c.Reason, maxLabel), Message: cut(c.Message, maxCondition)}
		}
	}
	return transfer.Verdict{}
}

// pinned returns why a launcher pod cannot be recreated on another node, or is recreated by
// its controller, or "".
func pinned(o *object) string {
	const hostname = "kubernetes.io/hostname"
	if c := metav1.GetControllerOf(o); c != nil && c.Kind != vmis().kind {
		return cut(fmt.Sprintf("launcher pod %s is controlled by %s %s, which would make another one here", o.Name, c.Kind, c.Name), maxCondition)
	}
	type terms struct {
		MatchExpressions, MatchFields []struct{ Key string }
	}
	var spec struct {
		NodeSelector map[string]string
		Affinity     struct {
			NodeAffinity struct {
				RequiredDuringSchedulingIgnoredDuringExecution struct{ NodeSelectorTerms []terms }
			}
		}
	}
	_ = json.Unmarshal(o.Spec, &spec) // unreadable is as if it were empty
	_, selects := spec.NodeSelector[hostname]
	if slices.Contains(strings.Split(o.Annotations[migration.AddedSelectorAnnotation], ","), hostname) {
		selects = false // by the migration that brought the VM here, and not for the next one
	}
	must := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for _, t := range must {
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			selects = selects || e.Key == hostname || e.Key == "metadata.name"
		}
	}
	if selects {
		return cut(fmt.Sprintf("launcher pod %s is pinned to its host by its node selector or affinity", o.Name), maxCondition)
	}
	return ""
}

// Movables implements transfer.VMIs.
func (s *Source) Movables() []transfer.VMI {
	pinned := map[key]string{}
	s.pods.all(func(p pod) {
		if p.pinned != "" && !p.Done {
			pinned[p.of] = p.pinned
		}
	})
	var all []transfer.VMI
	s.vmis.all(func(v vmi) {
		if v.State != grace.VMIDeleting {
			all = append(all, transfer.VMI{Namespace: v.name.namespace, Name: v.name.name, UID: v.UID, Shown: v.movable, Pinned: pinned[v.name]})
		}
	})
	return all
}

// SetLiveMigratable implements transfer.VMIs. A VMI that is another one by now, or
// on another node, is left alone.
func (s *Source) SetLiveMigratable(ctx context.Context, v transfer.VMI, is transfer.Verdict) error {
	o, err := s.get(ctx, vmis(), key{v.Namespace, v.Name})
	if err != nil {
		return err
	}
	patch, err := s.movablePatch(o, v, is)
	if err != nil || patch == nil {
		return err
	}
	if err := s.patchStatus(ctx, vmis(), key{v.Namespace, v.Name}, types.JSONPatchType, patch); err != nil {
		return fmt.Errorf("set the condition LiveMigratable: %w", err)
	}
	return nil
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// movablePatch changes the condition in the object as it was read, and keeps its fields
// that are not known here. It is nil where nothing is to be changed.
func (s *Source) movablePatch(o *object, v transfer.VMI, is transfer.Verdict) ([]operation, error) {
	var status kubevirt.VirtualMachineInstanceStatus
	_ = json.Unmarshal(o.Status, &status) // unreadable is as if it were empty
	if string(o.UID) != v.UID || o.Labels[kubevirt.NodeNameLabel] != s.node || cmp.Or(status.NodeName, s.node) != s.node || o.DeletionTimestamp != nil {
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

// conditionAt is a condition with all its fields.
func conditionAt(status json.RawMessage, at int) (map[string]any, error) {
	var members struct {
		Conditions []map[string]any `json:"conditions"`
	}
	// Unlike the standard library it takes no other spelling of a key and keeps integers as
	// they are. An item of another type keeps its place, and is an error.
	if err := kjson.Unmarshal(status, &members); len(members.Conditions) <= at {
		return nil, fmt.Errorf("%w: status.conditions: %w", errNotAPIServer, err)
	}
	return members.Conditions[at], nil
}

// write changes a condition to this verdict.
func write(c map[string]any, is transfer.Verdict) {
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
