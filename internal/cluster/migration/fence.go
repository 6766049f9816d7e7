package migration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// node reads what a migration depends on of a node: from the cache, and from the API server if
// the cache has none or shows it as fenced. Without the right to read nodes all count as Ready.
func (r *reconciler) node(ctx context.Context, name string) (migration.NodeFacts, error) {
	if name == "" || !r.Nodes {
		return migration.NodeFacts{}, nil
	}
	node := &corev1.Node{}
	err := r.Get(ctx, client.ObjectKey{Name: name}, node)
	if err != nil || index.Fenced(node) != "" {
		err = r.Live.Get(ctx, client.ObjectKey{Name: name}, node)
	}
	switch {
	case index.Gone(err, name):
		return migration.NodeFacts{Gone: true, Lost: true}, nil
	case err != nil:
		return migration.NodeFacts{}, fmt.Errorf("node %s: %w", name, err)
	}
	return migration.NodeFacts{Lost: !index.Ready(node), Since: index.LostSince(node), Fenced: index.Fenced(node)}, nil
}

// readNodes reads the migration's nodes.
func (r *reconciler) readNodes(ctx context.Context, g *gathered) error {
	s := migration.StateOf(g.Migration)
	target := s.TargetNode
	if target == "" && g.Target != nil {
		target = g.Target.Node
	}
	var err error
	if g.TargetNode, err = r.node(ctx, target); err != nil {
		return err
	}
	if !g.Migration.Final() {
		g.SourceNode, err = r.node(ctx, s.SourceNode)
	}
	return err
}

// fence reports the state of a fenced node's agent in its place. The patch fails if the agent has
// written since the migration was read.
func (r *reconciler) fence(ctx context.Context, g *gathered, step migration.Step) error {
	r.Log.Warn("a node of a migration is fenced", "migration", name(g.Migration), "why", step.Message)
	state, why := g.FencedState()
	err := r.status(ctx, g.Migration, func(m *object) {
		s := m.Status.MigrationState
		if step.Action == migration.FenceTarget {
			s.TargetState, s.TargetFenced = kubevirt.TargetAbsent, g.TargetNode.Fenced
			return
		}
		s.SourceState, s.SourceFenced = state, g.SourceNode.Fenced
		if why != "" {
			s.FailureReason = why
		}
	})
	if err != nil {
		return err
	}
	var regarding client.Object = g.Migration
	if g.hasVMI() {
		regarding = g.VMI
	}
	r.Events.Eventf(regarding, g.Migration, corev1.EventTypeWarning, "NodeFenced", "Migrate", "migration %s: %s", g.Migration.Name, step.Message)
	return nil
}

// hasVMI reports whether the VMI with which the migration has begun still exists.
func (g *gathered) hasVMI() bool {
	return g.VMI != nil && migration.StateOf(g.Migration).VMIUID == string(g.VMI.UID)
}

// said returns what the VMI says that this migration waits for, or "".
func (g *gathered) said() string {
	if !g.hasVMI() {
		return ""
	}
	if c := g.VMI.Condition(kubevirt.MigrationUndecided); c != nil && migration.Undecided(g.Migration, c.Message) {
		return c.Message
	}
	return ""
}

// reportDecided removes what the VMI says of this migration. It comes before the migration's next
// step, which may be the last one.
func (r *reconciler) reportDecided(ctx context.Context, g *gathered) error {
	if r.phases.waits(g.Migration.UID, "") {
		r.computeTurns()
	}
	if g.said() == "" {
		return nil
	}
	return patch.Status(ctx, r.Client, g.VMI, patch.Conditions(g.VMI, patch.Wanted{Type: kubevirt.MigrationUndecided})...)
}

// reportUndecided says on the VMI what the migration waits for. A VMI says it of one migration at a
// time: while another one waits, that one's text stays.
func (r *reconciler) reportUndecided(ctx context.Context, g *gathered, text string) error {
	fresh := r.phases.waits(g.Migration.UID, text)
	if fresh {
		r.computeTurns() // it leaves its slot to others
	}
	if !g.hasVMI() {
		if !fresh {
			return nil
		}
		r.Log.Warn("a migration without a VM is undecided", "migration", name(g.Migration), "why", text)
		r.Events.Eventf(g.Migration, nil, corev1.EventTypeWarning, kubevirt.MigrationUndecided, "Migrate", "%s", text)
		return nil
	}
	if g.said() == text || g.anotherWaits() {
		return nil
	}
	now := metav1.Time{Time: g.Now}
	r.Log.Warn("a migration is undecided", "migration", name(g.Migration), "why", text)
	r.Events.Eventf(g.VMI, g.Migration, corev1.EventTypeWarning, kubevirt.MigrationUndecided, "Migrate", "%s", text)
	return patch.Status(ctx, r.Client, g.VMI, patch.Conditions(g.VMI, patch.Wanted{Type: kubevirt.MigrationUndecided, Is: &kubevirt.Condition{
		Type: kubevirt.MigrationUndecided, Status: kubevirt.ConditionTrue, Reason: "AgentSilent", Message: text, LastProbeTime: now, LastTransitionTime: now,
	}})...)
}

// anotherWaits reports whether the VMI names another of its migrations, which is not over.
func (g *gathered) anotherWaits() bool {
	c := g.VMI.Condition(kubevirt.MigrationUndecided)
	return c != nil && slices.ContainsFunc(g.others, func(m object) bool {
		return m.UID != g.Migration.UID && migration.Undecided(&m, c.Message) && (!m.Final() || len(m.Finalizers) > 0)
	})
}
