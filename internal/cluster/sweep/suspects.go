package sweep

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// cached has what the cache shows. The objects are not to be changed.
type cached struct {
	vmis       []kubevirt.VirtualMachineInstance
	byName     map[client.ObjectKey]*kubevirt.VirtualMachineInstance
	migrations []kubevirt.VirtualMachineInstanceMigration
	nodes      map[string]bool // by name; nil if nodes may not be read
}

// suspects returns what looks like a leftover in the cache.
func (s *sweeper) suspects(ctx context.Context) (all []suspect, err error) {
	c, err := s.readCache(ctx)
	if err != nil {
		return nil, err
	}
	if s.Evacuations {
		all = append(all, s.marks(c)...)
	}
	if s.Migrations {
		all = append(all, s.labels(c)...)
		all = append(all, s.conditions(c)...)
		all = append(all, s.forgotten(c)...)
		pods, err := s.pods(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, pods...)
	}
	if s.Budgets {
		budgets, err := s.budgets(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, budgets...)
	}
	return all, nil
}

func (s *sweeper) readCache(ctx context.Context) (*cached, error) {
	var vmis kubevirt.VirtualMachineInstanceList
	if err := s.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("VMIs: %w", err)
	}
	var migrations kubevirt.VirtualMachineInstanceMigrationList
	if err := s.List(ctx, &migrations, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	c := &cached{vmis: vmis.Items, migrations: migrations.Items, byName: map[client.ObjectKey]*kubevirt.VirtualMachineInstance{}}
	for i := range c.vmis {
		c.byName[client.ObjectKeyFromObject(&c.vmis[i])] = &c.vmis[i]
	}
	if !s.readsNodes() {
		return c, nil
	}
	var nodes corev1.NodeList
	if err := s.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	c.nodes = map[string]bool{}
	for i := range nodes.Items {
		c.nodes[nodes.Items[i].Name] = true
	}
	return c, nil
}

// gone reports whether the cache has no node of a name. Without the right to read nodes each
// one counts as there.
func (c *cached) gone(node string) bool { return c.nodes != nil && node != "" && !c.nodes[node] }

// marks returns the VMIs with a mark of a node that they are not on, or that does not exist.
func (s *sweeper) marks(c *cached) (all []suspect) {
	for i := range c.vmis {
		v := &c.vmis[i]
		if mark := v.Status.EvacuationNodeName; mark != "" && (mark != v.Node() || c.gone(mark)) {
			all = append(all, suspect{metrics.LeftMark, v, s.endMark(client.ObjectKeyFromObject(v))})
		}
	}
	return all
}

// labels returns the VMIs with the label of a target, and without a migration.
func (s *sweeper) labels(c *cached) (all []suspect) {
	needed := map[client.ObjectKey]bool{}
	for i := range c.migrations {
		m := &c.migrations[i]
		key := client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}
		if v := c.byName[key]; v != nil && m.Of(v) && migration.NeedsLabel(m) {
			needed[key] = true
		}
	}
	for i := range c.vmis {
		v := &c.vmis[i]
		if key := client.ObjectKeyFromObject(v); v.Labels[kubevirt.MigrationTargetLabel] != "" && !needed[key] {
			all = append(all, suspect{metrics.LeftLabel, v, s.endLabel(key)})
		}
	}
	return all
}

// conditions returns the VMIs that say that a migration is undecided which does not exist: somebody
// has removed its finalizer.
func (s *sweeper) conditions(c *cached) (all []suspect) {
	for i := range c.vmis {
		v := &c.vmis[i]
		if said := v.Condition(kubevirt.MigrationUndecided); said != nil && !undecided(v, said.Message, c.migrations) {
			all = append(all, suspect{metrics.LeftCondition, v, s.endCondition(client.ObjectKeyFromObject(v))})
		}
	}
	return all
}

// undecided reports whether one of a VM's migrations is the one that a text is about.
func undecided(v *kubevirt.VirtualMachineInstance, said string, migrations []kubevirt.VirtualMachineInstanceMigration) bool {
	return slices.ContainsFunc(migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool {
		return m.Namespace == v.Namespace && m.Spec.VMIName == v.Name && m.Of(v) && migration.Undecided(&m, said)
	})
}

// forgotten returns the migrations that have a next step and do not take it.
func (s *sweeper) forgotten(c *cached) (all []suspect) {
	waiting := map[types.UID]bool{}
	for i := range c.migrations {
		m := &c.migrations[i]
		v := c.byName[client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}]
		if yes, _ := migration.Forgotten(m, v == nil || !m.Of(v), c.gone(migration.StateOf(m).TargetNode)); !yes {
			continue
		}
		kind := metrics.LeftMigration
		if m.Final() {
			kind = metrics.LeftFinalizer
		}
		all = append(all, suspect{kind, m, s.endMigration(m)})
		waiting[m.UID] = true
	}
	s.told.Range(func(uid, _ any) bool {
		if uid, ok := uid.(types.UID); !ok || !waiting[uid] {
			s.told.Delete(uid)
		}
		return true
	})
	return all
}

// pods returns the target pods without a migration that are not on their VMs' nodes.
func (s *sweeper) pods(ctx context.Context, c *cached) (all []suspect, err error) {
	known := map[string]bool{}
	for i := range c.migrations {
		known[string(c.migrations[i].UID)] = true
	}
	var pods corev1.PodList
	if err := s.List(ctx, &pods, client.HasLabels{kubevirt.MigrationJobLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("launcher pods: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		v := c.byName[client.ObjectKey{Namespace: p.Namespace, Name: p.Annotations[kubevirt.DomainAnnotation]}]
		if p.DeletionTimestamp != nil || index.Ended(p) || known[p.Labels[kubevirt.MigrationJobLabel]] ||
			v != nil && v.Node() == p.Spec.NodeName || time.Since(p.CreationTimestamp.Time) < migration.AbandonedAfter {
			continue
		}
		all = append(all, suspect{metrics.LeftPod, p, s.endPod(p)})
	}
	return all, nil
}

// budgets returns the disruption budgets of VMIs that do not exist.
func (s *sweeper) budgets(ctx context.Context, c *cached) (all []suspect, err error) {
	var budgets policyv1.PodDisruptionBudgetList
	if err := s.List(ctx, &budgets, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("disruption budgets: %w", err)
	}
	known := uids(c.vmis)
	for i := range budgets.Items {
		if b := &budgets.Items[i]; index.BudgetOf(b) != "" && b.DeletionTimestamp == nil && !known[index.BudgetOf(b)] {
			all = append(all, suspect{metrics.LeftBudget, b, s.endBudget(b)})
		}
	}
	return all, nil
}
