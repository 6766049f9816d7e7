package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/transfer"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// maxGrace bounds what is kept of a grace period that is none.
const maxGrace = 64

// vmi is a VMI as the agent is shown it.
type vmi struct {
	name key
	grace.VMI
	// marked is when the deletionTimestamp was first seen, grace.Never without
	// one. It may be the doing of the CRD's deletion: see deletions.go.
	marked grace.Mono
	// movable is what it shows of its condition LiveMigratable.
	movable transfer.Verdict
}

// undecided: whether its deletionTimestamp is its own deletion is not known.
func (v vmi) undecided() bool { return v.marked != grace.Never && v.State == grace.VMIPresent }

// pod is a launcher pod and the name of its VMI.
type pod struct {
	of key
	grace.Pod
	pinned string // what keeps it from being made anew elsewhere
	// static: it mirrors a static pod of kubelet's, whose directory has not the name of this
	// pod's UID.
	static bool
}

// mirror is kubelet's annotation of a pod that mirrors a static one.
const mirror = "kubernetes.io/config.mirror"

// crd is the definition of VMIs.
type crd struct {
	uid     string
	created time.Time
	ending  bool
}

// The selectors have already picked what is on this node; a proxy may have
// ignored them. What is nothing for us is the zero value.

func (s *Source) stripVMI(o *object, was vmi) vmi {
	name := key{o.Namespace, o.Name}
	if !name.valid() || !grace.IsUID(string(o.UID)) || o.Labels[kubevirt.NodeNameLabel] != s.node {
		return vmi{}
	}
	var status kubevirt.VirtualMachineInstanceStatus
	_ = json.Unmarshal(o.Status, &status) // unreadable is as if it were empty
	is := vmi{
		name: name, marked: grace.Never, movable: shownVerdict(o.Status),
		VMI: grace.VMI{State: grace.VMIPresent, UID: string(o.UID), Created: o.CreationTimestamp.UTC(), Grace: statedGrace(o.Spec), DeletingAt: grace.Never, Marked: status.EvacuationNodeName == s.node},
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

// statedGrace is the text of terminationGracePeriodSeconds, whatever it is: ""
// where it is absent. A spec of another kind states nothing.
func statedGrace(spec json.RawMessage) string {
	var fields map[string]json.RawMessage // a struct would take other spellings of a key
	if json.Unmarshal(spec, &fields) != nil {
		return ""
	}
	stated := string(fields["terminationGracePeriodSeconds"])
	if stated == "null" {
		return ""
	}
	return cut(stated, maxGrace)
}

// stripPod: the labels and annotations are a tenant's text.
func (s *Source) stripPod(o *object, was pod) pod {
	var spec struct {
		NodeName                      string
		TerminationGracePeriodSeconds *int64
		Priority                      int32
	}
	var status podStatus
	_, _ = json.Unmarshal(o.Spec, &spec), json.Unmarshal(o.Status, &status) // unreadable is as if it were empty
	// A pod that names no VMI is a VM by its own name.
	of := key{o.Namespace, strings.Clone(cmp.Or(o.Annotations[kubevirt.DomainAnnotation], o.Name))}
	if !of.valid() || !grace.IsUID(string(o.UID)) || spec.NodeName != s.node || o.Labels[kubevirt.AppLabel] != kubevirt.LauncherApp {
		return pod{}
	}
	_, static := o.Annotations[mirror]
	is := pod{pinned: pinned(o), of: of, static: static, Pod: grace.Pod{
		UID: string(o.UID), Created: o.CreationTimestamp.UTC(),
		Done: status.Phase == "Succeeded" || status.Phase == "Failed", Deleting: o.DeletionTimestamp != nil,
		DeletingAt: grace.Never, KillAt: grace.Never,
		DeletionGrace: seconds(o.DeletionGracePeriodSeconds),
		GracePeriod:   seconds(spec.TerminationGracePeriodSeconds),
		Priority:      spec.Priority,
	}}
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
		// An eviction of a pod that is being deleted writes another reason over it.
		is.HoldReason = cmp.Or(was.HoldReason, is.HoldReason)
	}
	return is
}

type podStatus struct {
	Phase      string
	Conditions []podCondition
}

type podCondition struct{ Type, Status, Reason, LastTransitionTime string }

// explainsDeletion: the pod is deleted because of this condition. One whose time cannot be
// read has none.
func (c *podCondition) explainsDeletion(o *object) bool {
	if c.Type != "DisruptionTarget" || c.Status != "True" || o.DeletionTimestamp == nil {
		return false
	}
	since, _ := time.Parse(time.RFC3339, c.LastTransitionTime)
	return evacuation.ExplainsDeletion(since, o.DeletionTimestamp.Time, o.DeletionGracePeriodSeconds)
}

// holdable reads whether the pod's shutdown may be held: only for a reason of
// Kubernetes' that it names, and not where its reserve is nonsense or a migration is
// allowed no time. An allowance that is not stated is the default.
func (p *pod) holdable(o *object, status *podStatus) {
	var reserve time.Duration // at least what the agent knows of, where none is stated
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

// stripCRD: a CRD that is being deleted stays so.
func stripCRD(o *object, _ crd) crd {
	if o.Name != kubevirt.CRD {
		return crd{}
	}
	return crd{uid: string(o.UID), created: o.CreationTimestamp.UTC(), ending: o.DeletionTimestamp != nil}
}

// seconds reads a number of seconds that may be absent, or nonsense.
func seconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(min(max(*n, 0), int64(grace.MaxPeriod/time.Second))) * time.Second
}
