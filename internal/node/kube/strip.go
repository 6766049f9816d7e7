package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/node/podcondition"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// maxGrace bounds the text kept of an invalid grace period.
const maxGrace = 64

// vmi is what the agent keeps of a VMI.
type vmi struct {
	name key
	grace.VMI
	// marked is when the deletionTimestamp was first seen, grace.Never without one. The
	// CRD's deletion may have set it: see deletions.go.
	marked grace.Mono
	// migratable is the VMI's condition LiveMigratable.
	migratable migratable.Verdict
	beside     besideVMI
	whose      launcherpod.Owner // which pods are its
}

// undecided returns whether it is unknown if the deletionTimestamp is the VMI's own
// deletion.
func (v vmi) undecided() bool { return v.marked != grace.Never && v.State == grace.VMIPresent }

// pod is a launcher pod and the name of its VMI.
type pod struct {
	of key
	grace.Pod
	bonds bonds                  // what binds it to this node
	name  string                 // its own
	shown podcondition.Condition // its condition ShuttingDown
	// static means that it mirrors a static pod of kubelet's. That pod's directory does not
	// have this UID as its name.
	static bool
	target bool // of a migration
	beside besidePod
}

// mirror is kubelet's annotation of a pod that mirrors a static one.
const mirror = "kubernetes.io/config.mirror"

// crd is the definition of VMIs.
type crd struct {
	uid     string
	created time.Time
	ending  bool
}

// The strip functions repeat the checks of the selectors, which a proxy may have ignored.
// They return the zero value for what does not concern this node.

func (s *Source) stripVMI(o *object, was vmi) vmi {
	name := key{o.Namespace, o.Name}
	if !name.valid() || !grace.IsUID(string(o.UID)) || o.Labels[kubevirt.NodeNameLabel] != s.node {
		return vmi{}
	}
	var status kubevirt.VirtualMachineInstanceStatus
	_ = json.Unmarshal(o.Status, &status) // unreadable JSON counts as empty
	is := vmi{
		name: name, marked: grace.Never, migratable: shownVerdict(o.Status), beside: s.besideOf(&status),
		whose: kubevirt.OwnerOf(string(o.UID), o.DeletionTimestamp, &status),
		VMI:   grace.VMI{State: grace.VMIPresent, UID: string(o.UID), Created: o.CreationTimestamp.UTC(), Grace: statedGrace(o.Spec), DeletingAt: grace.Never, Marked: status.EvacuationNodeName == s.node},
	}
	switch {
	case o.DeletionTimestamp == nil:
	case was.UID == is.UID && was.marked != grace.Never:
		is.marked, is.State, is.DeletingAt = was.marked, was.State, was.DeletingAt
	default:
		is.marked = s.now()
	}
	return is
}

// statedGrace returns the text of terminationGracePeriodSeconds, valid or not. It is "" if
// the field is absent or the spec is no object.
func statedGrace(spec json.RawMessage) string {
	var fields map[string]json.RawMessage // a struct would match other spellings of a key
	if json.Unmarshal(spec, &fields) != nil {
		return ""
	}
	stated := string(fields["terminationGracePeriodSeconds"])
	if stated == "null" {
		return ""
	}
	return cut(stated, maxGrace)
}

// stripPod trusts no label or annotation: a tenant may have written it.
func (s *Source) stripPod(o *object, was pod) pod {
	var spec struct {
		NodeName                      string
		TerminationGracePeriodSeconds *int64
		Priority                      int32
	}
	var status podStatus
	_, _ = json.Unmarshal(o.Spec, &spec), json.Unmarshal(o.Status, &status) // unreadable JSON counts as empty
	// A pod without the annotation counts as the VM of its own name.
	of := key{o.Namespace, strings.Clone(cmp.Or(o.Annotations[kubevirt.DomainAnnotation], o.Name))}
	if !of.valid() || !grace.IsUID(string(o.UID)) || spec.NodeName != s.node || o.Labels[kubevirt.AppLabel] != kubevirt.LauncherApp {
		return pod{}
	}
	_, static := o.Annotations[mirror]
	is := pod{bonds: bondsOf(o), of: of, name: strings.Clone(o.Name), shown: status.shutdown(), static: static, beside: besidePodOf(o, &status), Pod: grace.Pod{
		UID: string(o.UID), Created: o.CreationTimestamp.UTC(),
		Done: status.Phase == "Succeeded" || status.Phase == "Failed", Deleting: o.DeletionTimestamp != nil,
		DeletingAt: grace.Never, KillAt: grace.Never,
		DeletionGrace: seconds(o.DeletionGracePeriodSeconds),
		GracePeriod:   seconds(spec.TerminationGracePeriodSeconds),
		Priority:      spec.Priority,
	}}
	is.target = o.Labels[kubevirt.MigrationJobLabel] != ""
	if uid := o.Labels[kubevirt.CreatedByLabel]; grace.IsUID(uid) {
		is.VMI = uid
	}
	is.holdable(o, &status)
	if !is.Deleting {
		return is
	}
	is.DeletingAt = s.now()
	if o.DeletionGracePeriodSeconds != nil {
		is.KillAt = is.DeletingAt.Add(is.DeletionGrace)
	}
	if was.Deleting && was.UID == is.UID {
		is.DeletingAt, is.KillAt = was.DeletingAt, min(was.KillAt, is.KillAt)
		// A later eviction overwrites the reason of a pod that is being deleted.
		is.HoldReason = cmp.Or(was.HoldReason, is.HoldReason)
	}
	return is
}

type podStatus struct {
	Phase             string
	Conditions        []podCondition
	ContainerStatuses []struct{ Name, ContainerID string }
}

type podCondition struct{ Type, Status, Reason, Message, LastTransitionTime string }

// explainsDeletion returns whether the pod is deleted because of this condition. An
// unreadable time counts as the zero time.
func (c *podCondition) explainsDeletion(o *object) bool {
	if c.Type != "DisruptionTarget" || c.Status != "True" || o.DeletionTimestamp == nil {
		return false
	}
	since, _ := time.Parse(time.RFC3339, c.LastTransitionTime)
	return evacuation.ExplainsDeletion(since, o.DeletionTimestamp.Time, o.DeletionGracePeriodSeconds)
}

// holdable sets whether the pod's shutdown may be held. The pod must name a reason of
// Kubernetes'. Its stated reserve must be valid, and its migration allowance not 0. A
// missing allowance is the default.
func (p *pod) holdable(o *object, status *podStatus) {
	var reserve time.Duration // 0 if none is stated; the agent uses at least its own
	if stated := o.Annotations[evacuation.ReserveAnnotation]; stated != "" {
		var err error
		if reserve, err = grace.ParseSeconds(stated); err != nil && !errors.Is(err, grace.ErrTooLong) {
			return
		}
	}
	for _, reason := range []grace.Cause{grace.PreemptionByScheduler, grace.DeletionByTaintManager} {
		if !slices.Contains(strings.Split(o.Annotations[evacuation.HoldForAnnotation], ","), string(reason)) {
			continue
		}
		p.Holdable, p.Reserve = true, reserve
		for _, c := range status.Conditions {
			if c.Reason == string(reason) && c.explainsDeletion(o) {
				p.HoldReason = reason
			}
		}
	}
	if !p.Holdable {
		return
	}
	if padding, err := grace.ParseSeconds(o.Annotations[evacuation.PaddingAnnotation]); err == nil {
		p.Padding = padding
	}
	p.Allowance = v1alpha1.DefaultMigrationAllowance
	if allowance, err := grace.ParseSeconds(o.Annotations[evacuation.AllowanceAnnotation]); err == nil {
		p.Allowance, p.Holdable = allowance, allowance > 0
	}
}

// stripCRD needs no previous version: a CRD's deletion is final.
func stripCRD(o *object, _ crd) crd {
	if o.Name != kubevirt.CRD {
		return crd{}
	}
	return crd{uid: string(o.UID), created: o.CreationTimestamp.UTC(), ending: o.DeletionTimestamp != nil}
}

// seconds converts a number of seconds that may be absent or out of range.
func seconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(min(max(*n, 0), int64(grace.MaxPeriod/time.Second))) * time.Second
}
