package migration

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// gathered holds the inputs of migration.Next, with the objects that they were read from.
type gathered struct {
	migration.Facts

	others []kubevirt.VirtualMachineInstanceMigration // of the VM
}

func (r *reconciler) gather(ctx context.Context, m *kubevirt.VirtualMachineInstanceMigration) (*gathered, error) {
	now := time.Now()
	g := &gathered{Facts: migration.Facts{Migration: m, Now: now, Turn: r.turns.has(m.UID)}}
	g.Seen, g.Trouble = r.phases.since(m, now)
	var err error
	if g.VMI, err = r.vmi(ctx, m); err != nil {
		return nil, err
	}
	if g.VMI != nil {
		if g.others, err = index.Migrations(ctx, r.Client, g.VMI); err != nil {
			return nil, err
		}
	}
	g.Before, g.Said = precededBy(m, g.others), g.said()
	if err := r.readPods(ctx, g); err != nil {
		return nil, err
	}
	if m.Final() {
		if len(m.Finalizers) == 0 {
			return g, nil
		}
		return g, r.readNodes(ctx, g)
	}
	if evacuation.PhaseOf(m) == kubevirt.MigrationPending {
		if g.VMI != nil {
			g.Undecided = r.turns.undecidedOn(g.VMI.Node())
			g.OtherNodes, err = r.otherNodes(ctx, g.VMI.Node())
		}
		return g, err
	}
	if err := r.readNodes(ctx, g); err != nil {
		return nil, err
	}
	return g, r.checkBudget(ctx, g)
}

// precededBy returns the name of a migration of the same VM that m has to wait for: one
// that has begun, or an older one. If m is not pending, only one that has begun counts.
func precededBy(m *object, all []object) string {
	for i := range all {
		o := &all[i]
		if o.UID == m.UID || o.Final() {
			continue
		}
		begun := evacuation.PhaseOf(o) != kubevirt.MigrationPending
		older := o.CreationTimestamp.Before(&m.CreationTimestamp) || o.CreationTimestamp.Equal(&m.CreationTimestamp) && o.Name < m.Name
		if begun || !m.Final() && evacuation.PhaseOf(m) == kubevirt.MigrationPending && older && o.DeletionTimestamp == nil {
			return o.Name
		}
	}
	return ""
}

// vmi reads the migration's VMI. It is nil only if a live read proves that there is none.
func (r *reconciler) vmi(ctx context.Context, m *kubevirt.VirtualMachineInstanceMigration) (*kubevirt.VirtualMachineInstance, error) {
	key := client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}
	if key.Name == "" || len(content.IsPathSegmentName(key.Name)) > 0 {
		return nil, nil //nolint:nilnil // no VMI has this name, and the API server cannot be asked for it
	}
	vmi := &kubevirt.VirtualMachineInstance{}
	err := r.Get(ctx, key, vmi)
	uid := migration.StateOf(m).VMIUID
	if err == nil && (uid == "" || uid == string(vmi.UID)) {
		return vmi, nil
	}
	if err == nil || apierrors.IsNotFound(err) {
		err = r.Live.Get(ctx, key, vmi) // the cache may be stale
	}
	switch {
	case err == nil:
		return vmi, nil
	case index.Gone(err, key.Name):
		return nil, nil //nolint:nilnil // gone
	}
	return nil, fmt.Errorf("VMI %s: %w", key, err)
}

// readPods reads the source and the target pod.
func (r *reconciler) readPods(ctx context.Context, g *gathered) error {
	s := migration.StateOf(g.Migration)
	if g.VMI != nil {
		launchers, err := r.launchers(ctx, g)
		if err != nil {
			return err
		}
		g.Launchers = len(index.Unspent(launchers, g.others))
		if i := slices.IndexFunc(launchers, g.isSource); i >= 0 {
			g.Source = podFacts(&launchers[i], g.VMI)
		}
	}
	target := &corev1.Pod{}
	key := client.ObjectKey{Namespace: g.Migration.Namespace, Name: migration.TargetPodName(g.Migration.Spec.VMIName, string(g.Migration.UID))}
	err := r.Get(ctx, key, target)
	if apierrors.IsNotFound(err) && s.TargetPodUID != "" && !g.Migration.Final() {
		err = r.Live.Get(ctx, key, target) // the cache may be stale
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pod %s: %w", key, err)
	}
	g.Target = podFacts(target, g.VMI)
	g.Target.Foreign = target.Labels[kubevirt.MigrationJobLabel] != string(g.Migration.UID) ||
		s.TargetPodUID != "" && s.TargetPodUID != string(target.UID)
	return nil
}

// launchers returns the VM's launchers. A failure is final, so if the cache misses the
// source pod they are read from the API server.
func (r *reconciler) launchers(ctx context.Context, g *gathered) ([]corev1.Pod, error) {
	cached, err := index.Launchers(ctx, r.Client, g.VMI)
	if err != nil || g.Migration.Final() || slices.ContainsFunc(cached, g.isSource) {
		return cached, err
	}
	return index.LaunchersNow(ctx, r.Live, g.VMI)
}

// isSource reports whether a launcher is the source of the migration.
func (g *gathered) isSource(p corev1.Pod) bool {
	if uid := migration.StateOf(g.Migration).SourcePodUID; uid != "" {
		return uid == string(p.UID)
	}
	return p.Spec.NodeName != "" && p.Spec.NodeName == g.VMI.Node()
}

// checkBudget sets whether the disruption budget allows for a second launcher.
func (r *reconciler) checkBudget(ctx context.Context, g *gathered) error {
	g.Kept = !r.Budgets || g.VMI == nil
	if g.Kept {
		return nil
	}
	strategy, _ := evacuation.StrategyOf(g.VMI, r.Settings.Get().EvictionStrategy)
	want := evacuation.BudgetFor(evacuation.BudgetFacts{VMI: g.VMI, Strategy: strategy, ActivePods: g.Launchers, Migrations: g.others})
	if want.MinAvailable == 0 {
		g.Kept = true
		return nil
	}
	have, err := index.Budgets(ctx, r.Client, g.VMI)
	if err != nil {
		return err
	}
	for i := range have {
		b := &have[i]
		g.Kept = g.Kept || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.IntValue() >= 2
	}
	return nil
}

// otherNodes counts other nodes, one at most: thousands of migrations may wait in a cluster of
// thousands of nodes. Without the right to read nodes it returns 1: the scheduler reports if there
// is none.
func (r *reconciler) otherNodes(ctx context.Context, than string) (n int, err error) {
	if !r.Nodes {
		return 1, nil
	}
	var two corev1.NodeList // one of two is another
	if err := r.List(ctx, &two, client.UnsafeDisableDeepCopy, client.Limit(2)); err != nil {
		return 0, fmt.Errorf("nodes: %w", err)
	}
	for i := range two.Items {
		if two.Items[i].Name != than {
			return 1, nil
		}
	}
	return 0, nil
}
