package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// fail ends a migration as failed. The reason must be one line.
func (r *reconciler) fail(ctx context.Context, g *gathered, reason string) error {
	now := metav1.Now()
	r.writeFailureToVMI(ctx, g, reason, now)
	err := r.status(ctx, g.Migration, func(m *object) {
		m.Status.Phase = kubevirt.MigrationFailed
		s := m.Status.MigrationState
		s.MigrationUID = string(m.UID)
		if s.TargetNode == "" && g.Target != nil && !g.Target.Foreign && !strings.HasSuffix(reason, kubevirt.FailureNoRoom) {
			s.TargetNode = g.Target.Node // the next target avoids it
		}
		s.Failed, s.FailureReason, s.EndTimestamp = true, reason, &now
	})
	if err != nil && !patch.Stale(err) {
		r.turns.over(g.Migration.UID)
		r.computeTurns()
	}
	if err != nil {
		return err
	}
	r.countEnd(g, "failed")
	r.Events.Eventf(g.Migration, nil, corev1.EventTypeWarning, "MigrationFailed", "Migrate", "%s", reason)
	if g.VMI != nil && (migration.StateOf(g.Migration).SourceNode != "" || evacuation.Evacuates(g.Migration)) {
		r.Events.Eventf(g.VMI, g.Migration, corev1.EventTypeWarning, "MigrationFailed", "Migrate", "migration %s: %s", g.Migration.Name, reason)
	}
	return nil
}

// writeFailureToVMI copies a failure to the VMI's status once the target is known. An
// error is only logged: the migration's own status counts.
func (r *reconciler) writeFailureToVMI(ctx context.Context, g *gathered, reason string, now metav1.Time) {
	s := migration.StateOf(g.Migration)
	if g.VMI == nil || s.TargetNode == "" || s.VMIUID != string(g.VMI.UID) {
		return
	}
	err := patch.Apply(ctx, r.Client, g.VMI,
		patch.Operation{Op: "test", Path: "/metadata/uid", Value: g.VMI.UID},
		patch.Operation{Op: "add", Path: "/status/migrationState", Value: &kubevirt.MigrationState{
			MigrationUID: s.MigrationUID, SourceNode: s.SourceNode, SourcePod: s.SourcePod, TargetNode: s.TargetNode, TargetPod: s.TargetPod,
			StartTimestamp: s.StartTimestamp, EndTimestamp: &now, Failed: true, FailureReason: reason,
		}})
	if err != nil {
		r.Log.Debug("the failure is not written to the VMI", "migration", name(g.Migration), "error", err)
	}
}

// recordMove writes the VM's new node: status.nodeName and the mark in one patch, then the
// label by which the agents' watches select the VMI.
func (r *reconciler) recordMove(ctx context.Context, g *gathered) error {
	s := migration.StateOf(g.Migration)
	if g.VMI.Status.NodeName != s.TargetNode {
		if err := patch.HaveStatus(ctx, r.Client, g.VMI); err != nil {
			return err
		}
		if err := patch.Apply(ctx, r.Client, g.VMI, movePatch(g.VMI, s, metav1.Now())...); err != nil {
			return fmt.Errorf("status of VMI %s: %w", name(g.VMI), err)
		}
	}
	return patch.Metadata(ctx, r.Client, g.VMI, "labels", map[string]any{kubevirt.NodeNameLabel: s.TargetNode, kubevirt.MigrationTargetLabel: nil})
}

// movePatch returns the patch of the VMI's status after a move.
func movePatch(vmi *kubevirt.VirtualMachineInstance, s *kubevirt.MigrationState, now metav1.Time) []patch.Operation {
	steps := append(patch.SameNode(vmi), patch.Operation{Op: "add", Path: "/status/nodeName", Value: s.TargetNode})
	if vmi.Status.EvacuationNodeName != "" {
		steps = append(steps, patch.Operation{Op: "remove", Path: "/status/evacuationNodeName"})
	}
	if vmi.Status.Mark != nil {
		steps = append(steps, patch.Operation{Op: "add", Path: "/status/vmgraceMark"}) // null: it explained the mark
	}
	if fenced := fencedNodes(vmi.Status.FencedNodes, s); !slices.Equal(fenced, vmi.Status.FencedNodes) {
		steps = append(steps, patch.Operation{Op: "add", Path: "/status/vmgraceFencedNodes", Value: fenced})
	}
	return append(steps, patch.Operation{Op: "add", Path: "/status/migrationState", Value: &kubevirt.MigrationState{
		MigrationUID: s.MigrationUID, SourceNode: s.SourceNode, SourcePod: s.SourcePod,
		TargetNode: s.TargetNode, TargetPod: s.TargetPod, TargetNodeAddress: s.TargetNodeAddress,
		StartTimestamp: s.StartTimestamp, EndTimestamp: &now, Completed: true, Mode: s.Mode,
	}})
}

// fencedNodes returns the VMI's fenced nodes after a move: the source if it was fenced. The target
// had no copy of the VM before.
func fencedNodes(before []string, s *kubevirt.MigrationState) []string {
	after := slices.DeleteFunc(slices.Clone(before), func(node string) bool { return node == s.TargetNode || node == s.SourceNode })
	if s.SourceFenced != "" {
		after = append(after, s.SourceNode)
	}
	return after[max(0, len(after)-maxFencedNodes):]
}

// maxFencedNodes bounds the VMI's fenced nodes.
const maxFencedNodes = 16

func (r *reconciler) succeed(ctx context.Context, g *gathered) error {
	now := metav1.Now()
	err := r.status(ctx, g.Migration, func(m *object) {
		m.Status.Phase = kubevirt.MigrationSucceeded
		s := m.Status.MigrationState
		s.Completed, s.Failed, s.FailureReason, s.EndTimestamp = true, false, "", &now
	})
	if err != nil {
		return err
	}
	r.countEnd(g, "succeeded")
	if g.VMI != nil {
		s := migration.StateOf(g.Migration)
		r.Events.Eventf(g.VMI, g.Migration, corev1.EventTypeNormal, "Migrated", "Migrate",
			"the VM has moved from node %s to node %s (migration %s)%s", s.SourceNode, s.TargetNode, g.Migration.Name, pauseText(s))
	}
	return nil
}

// pauseText states for how long the guest was paused so that its migration ends. It is
// empty if the guest was not paused, or if the clocks of the two nodes disagree.
func pauseText(s *kubevirt.MigrationState) string {
	if !s.PauseTimestamp.Before(s.ResumeTimestamp) { // also false if one of them is nil
		return ""
	}
	return fmt.Sprintf("; it was paused for %v", s.ResumeTimestamp.Sub(s.PauseTimestamp.Time).Round(10*time.Millisecond))
}

// countEnd counts a migration that ended. It is called after its end was written, which
// succeeds once.
func (r *reconciler) countEnd(g *gathered, result string) {
	s := migration.StateOf(g.Migration)
	cause := g.Migration.Annotations[evacuation.CauseAnnotation]
	switch cause { // users may write the annotation: no other value becomes a label
	case evacuation.CauseEviction, evacuation.CausePreemption, evacuation.CauseNoExecute, evacuation.CauseNodeTaint:
	default:
		cause = "User"
	}
	var took time.Duration
	if s.StartTimestamp != nil && s.EndTimestamp != nil {
		took = s.EndTimestamp.Sub(s.StartTimestamp.Time)
	}
	r.Meter.Migration(cause, result, took)
}

// oneLine returns an error's message without line breaks.
func oneLine(err error) string {
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		text = status.Status().Message
	}
	return oneline.Cut(text, 256)
}
