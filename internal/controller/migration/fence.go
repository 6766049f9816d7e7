package migration

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/index"
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/internal/migration"
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
	err := r.status(ctx, g.Migration, func(m *object) {
		if s := m.Status.MigrationState; step.Action == migration.FenceSource {
			s.SourceState, s.SourceFenced = kubevirt.SourceGone, g.SourceNode.Fenced
		} else {
			s.TargetState, s.TargetFenced = kubevirt.TargetAbsent, g.TargetNode.Fenced
		}
	})
	if err != nil {
		return err
	}
	r.Events.Eventf(r.regarding(g), g.Migration, corev1.EventTypeWarning, "NodeFenced", "Migrate", "migration %s: %s", g.Migration.Name, step.Message)
	return nil
}

// regarding returns the object that Events are about: the VMI or, without one, the migration.
func (r *reconciler) regarding(g *gathered) client.Object {
	if g.VMI != nil {
		return g.VMI
	}
	return g.Migration
}

// reportUndecided keeps the VMI's condition MigrationUndecided. It touches no condition of another
// migration.
func (r *reconciler) reportUndecided(ctx context.Context, g *gathered, text string) error {
	if g.VMI == nil {
		if text != "" {
			r.Events.Eventf(g.Migration, nil, corev1.EventTypeWarning, kubevirt.MigrationUndecided, "Migrate", "%s", text)
		}
		return nil
	}
	have := g.VMI.Condition(kubevirt.MigrationUndecided)
	wanted := patch.Wanted{Type: kubevirt.MigrationUndecided}
	switch {
	case text == "" && (have == nil || !migration.Undecided(g.Migration, have.Message)):
		return nil
	case have != nil && have.Status == kubevirt.ConditionTrue && have.Message == text:
		return nil
	case text != "":
		now := metav1.Time{Time: g.Now}
		wanted.Is = &kubevirt.Condition{Type: wanted.Type, Status: kubevirt.ConditionTrue, Reason: "AgentSilent", Message: text, LastProbeTime: now, LastTransitionTime: now}
		r.Log.Warn("a migration is undecided", "migration", name(g.Migration), "why", text)
		r.Events.Eventf(g.VMI, g.Migration, corev1.EventTypeWarning, kubevirt.MigrationUndecided, "Migrate", "%s", text)
	}
	return patch.Status(ctx, r.Client, g.VMI, patch.Conditions(g.VMI, wanted)...)
}
