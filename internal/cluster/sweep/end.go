package sweep

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// ending ends an object if live reads prove that it is a leftover. about is the object of the Event;
// why is empty if nothing was done.
type ending = func(ctx context.Context, l *live) (about client.Object, why string, err error)

// endMark takes back a VM's mark.
func (s *sweeper) endMark(vm client.ObjectKey) ending {
	return func(ctx context.Context, l *live) (client.Object, string, error) {
		v, err := l.vmi(ctx, vm)
		if v == nil || err != nil || v.Status.EvacuationNodeName == "" {
			return nil, "", err
		}
		if err := s.Settings.Known(); err != nil {
			return nil, "", err
		}
		f := evacuation.StaleFacts{VMI: v}
		f.Strategy, _ = evacuation.StrategyOf(v, s.Settings.Get().EvictionStrategy)
		migrations, err := index.MigrationsNow(ctx, l, v)
		if err != nil {
			return nil, "", err
		}
		f.Migrating = slices.ContainsFunc(migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool {
			return !m.Final()
		})
		launchers, err := index.LaunchersNow(ctx, l, v)
		if err != nil {
			return nil, "", err
		}
		f.LauncherTerminating = slices.ContainsFunc(launchers, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if s.Nodes {
			if f.NodeGone, err = l.nodeGone(ctx, v.Status.EvacuationNodeName); err != nil {
				return nil, "", err
			}
		}
		remove, why := evacuation.StaleMark(f)
		if !remove {
			return nil, "", nil
		}
		return v, why, move.TakeBack(ctx, s.Client, v, time.Now())
	}
}

// endLabel removes the label of a migration's target from a VMI.
func (s *sweeper) endLabel(vm client.ObjectKey) ending {
	return func(ctx context.Context, l *live) (client.Object, string, error) {
		v, err := l.vmi(ctx, vm)
		if v == nil || err != nil || v.Labels[kubevirt.MigrationTargetLabel] == "" {
			return nil, "", err
		}
		// Not the list of the sweep: this one is younger than the VMI that was read.
		migrations, err := index.MigrationsNow(ctx, l, v)
		if err != nil {
			return nil, "", err
		}
		if slices.ContainsFunc(migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool { return migration.NeedsLabel(&m) }) {
			return nil, "", nil
		}
		why := fmt.Sprintf("no migration moves the VM to node %s", v.Labels[kubevirt.MigrationTargetLabel])
		return v, why, patch.MetadataAsRead(ctx, s.Client, v, "labels", map[string]any{kubevirt.MigrationTargetLabel: nil})
	}
}

// endCondition removes what a VMI says of a migration that does not exist.
func (s *sweeper) endCondition(vm client.ObjectKey) ending {
	return func(ctx context.Context, l *live) (client.Object, string, error) {
		v, err := l.vmi(ctx, vm)
		if v == nil || err != nil {
			return nil, "", err
		}
		migrations, err := index.MigrationsNow(ctx, l, v)
		said := v.Condition(kubevirt.MigrationUndecided)
		if err != nil || said == nil || undecided(v, said.Message, migrations) {
			return nil, "", err
		}
		return v, "the migration that it names does not exist", patch.Status(ctx, s.Client, v, patch.Conditions(v, patch.Wanted{Type: kubevirt.MigrationUndecided})...)
	}
}

// endMigration hands a migration to its controller, which ends it or lets it go. A migration
// that it has got already, and that is still there, has a reason that its controller tells.
func (s *sweeper) endMigration(m *kubevirt.VirtualMachineInstanceMigration) ending {
	return func(ctx context.Context, l *live) (client.Object, string, error) {
		var v *kubevirt.VirtualMachineInstance
		var err error
		if name := m.Spec.VMIName; name != "" && len(content.IsPathSegmentName(name)) == 0 { // a name that a VMI can have
			if v, err = l.vmi(ctx, client.ObjectKey{Namespace: m.Namespace, Name: name}); err != nil {
				return nil, "", err
			}
		}
		nodeGone := false
		if node := migration.StateOf(m).TargetNode; node != "" && s.Nodes {
			if nodeGone, err = l.nodeGone(ctx, node); err != nil {
				return nil, "", err
			}
		}
		yes, why := migration.Forgotten(m, v == nil || !m.Of(v), nodeGone)
		if !yes {
			return nil, "", nil
		}
		select {
		case s.Again <- event.GenericEvent{Object: m.DeepCopy()}:
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
		if _, told := s.told.LoadOrStore(m.UID, true); told {
			return nil, "", nil
		}
		if v != nil {
			return v, why, nil
		}
		return m, why, nil
	}
}

// endPod deletes a target pod in the version that was read: a pod that somebody has found a use
// for has changed.
func (s *sweeper) endPod(p *corev1.Pod) ending {
	return func(ctx context.Context, l *live) (client.Object, string, error) {
		pod := &corev1.Pod{}
		if err := l.Get(ctx, client.ObjectKeyFromObject(p), pod); err != nil || pod.UID != p.UID {
			return nil, "", client.IgnoreNotFound(err)
		}
		f := migration.AbandonedFacts{
			VMIName: pod.Annotations[kubevirt.DomainAnnotation], VMIUID: pod.Labels[kubevirt.CreatedByLabel],
			MigrationUID: pod.Labels[kubevirt.MigrationJobLabel], Now: time.Now(), HandedOver: pod.Annotations[migration.HandedOverAnnotation] != "",
			Pod: migration.Pod{Name: pod.Name, Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.Time,
				Ended: index.Ended(pod), Deleting: pod.DeletionTimestamp != nil},
		}
		migrations, err := l.migrationsOf(ctx, pod.Namespace)
		if err != nil || f.VMIName == "" {
			return nil, "", err
		}
		f.MigrationExists = slices.ContainsFunc(migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool { return string(m.UID) == f.MigrationUID })
		if f.VMI, err = l.vmi(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: f.VMIName}); err != nil {
			return nil, "", err
		}
		about := client.Object(pod)
		if f.VMI != nil {
			about = f.VMI
			if f.LauncherRuns, err = launcherRuns(ctx, l, f.VMI); err != nil {
				return nil, "", err
			}
		}
		remove, why := migration.Abandoned(f)
		if !remove {
			return nil, "", nil
		}
		return about, why, s.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	}
}

// launcherRuns reports whether a VM's launcher is Ready on the VM's node and is not being
// deleted.
func launcherRuns(ctx context.Context, l *live, v *kubevirt.VirtualMachineInstance) (bool, error) {
	launchers, err := index.LaunchersNow(ctx, l, v)
	return slices.ContainsFunc(launchers, func(p corev1.Pod) bool {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		return ready && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && p.Spec.NodeName == v.Node()
	}), err
}

// endBudget deletes a disruption budget in the version of the cache.
func (s *sweeper) endBudget(b *policyv1.PodDisruptionBudget) ending {
	return func(ctx context.Context, l *live) (client.Object, string, error) {
		vmis, err := l.vmisOf(ctx, b.Namespace)
		if err != nil || vmis[index.BudgetOf(b)] {
			return nil, "", err
		}
		return b, "its VirtualMachineInstance does not exist", s.Delete(ctx, b.DeepCopy(), client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
	}
}
