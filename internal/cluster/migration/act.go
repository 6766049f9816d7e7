package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

type object = kubevirt.VirtualMachineInstanceMigration

// act carries out the decision. Each write fails with a conflict unless the object
// still has the version or UID that the decision was made on.
func (r *reconciler) act(ctx context.Context, g *gathered, step migration.Step) error {
	switch step.Action {
	case migration.Adopt:
		return r.adopt(ctx, g.Migration)
	case migration.Release:
		others := slices.DeleteFunc(slices.Clone(g.Migration.Finalizers), func(f string) bool { return f == migration.Finalizer })
		return patch.MetadataAsRead(ctx, r.Client, g.Migration, "finalizers", others)
	case migration.Begin:
		return r.beginMigration(ctx, g)
	case migration.MakePod:
		return r.createPod(ctx, g)
	case migration.Schedule:
		return r.tryToSchedule(ctx, g)
	case migration.Abort:
		r.Log.Info("migration is aborted", "migration", name(g.Migration), "why", step.Message)
		return r.status(ctx, g.Migration, func(m *object) {
			m.Status.MigrationState.AbortRequested, m.Status.MigrationState.FailureReason = true, step.Message
		})
	case migration.FenceSource, migration.FenceTarget:
		return r.fence(ctx, g, step)
	case migration.Fail:
		return r.fail(ctx, g, step.Message)
	case migration.Move:
		return r.recordMove(ctx, g)
	case migration.Succeed:
		return r.succeed(ctx, g)
	case migration.Unlabel:
		return patch.Metadata(ctx, r.Client, g.VMI, "labels", map[string]any{kubevirt.MigrationTargetLabel: nil})
	case migration.DropPod:
		return r.deletePod(ctx, g)
	case migration.Expand, migration.Wait: // the controller disruption-budgets expands, and its budgets are watched
		return r.sayWait(ctx, g, step)
	case migration.Nothing:
	}
	return nil
}

// tryToSchedule notes why a migration could not be handed over.
func (r *reconciler) tryToSchedule(ctx context.Context, g *gathered) error {
	err := r.schedule(ctx, g)
	if err != nil && !patch.Stale(err) && !errors.Is(err, errNoTurn) {
		r.phases.trouble(g.Migration, oneLine(err))
	}
	return err
}

// sayWait writes what a migration waits for.
func (r *reconciler) sayWait(ctx context.Context, g *gathered, step migration.Step) error {
	if step.Waits == "" {
		return nil
	}
	err := r.status(ctx, g.Migration, func(m *object) {
		m.Status.Phase, m.Status.MigrationState.WaitsFor = evacuation.PhaseOf(m), step.Waits
	})
	if err == nil && g.VMI != nil {
		r.Events.Eventf(g.VMI, g.Migration, corev1.EventTypeNormal, "MigrationWaits", "Migrate", "migration %s waits: %s", g.Migration.Name, step.Waits)
	}
	return err
}

// adopt adds the finalizer. If that fails, the migration lets others go first.
func (r *reconciler) adopt(ctx context.Context, m *object) error {
	err := patch.MetadataAsRead(ctx, r.Client, m, "finalizers", append(slices.Clone(m.Finalizers), migration.Finalizer))
	if err != nil && !apierrors.IsConflict(err) {
		r.turns.refused(m.UID)
		r.computeTurns()
	}
	return err
}

func name(o client.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// status patches a migration's status, with the optimistic lock.
func (r *reconciler) status(ctx context.Context, m *object, change func(*object)) error {
	before := m.DeepCopy()
	if m.Status.MigrationState == nil {
		m.Status.MigrationState = &kubevirt.MigrationState{}
	}
	m.Status.MigrationState.WaitsFor = "" // unless change says something else
	change(m)
	phase, why := m.Status.Phase, m.Status.MigrationState.FailureReason
	if phase != before.Status.Phase {
		m.Status.PhaseTransitionTimestamps = before.Transitions(phase, metav1.Now().Time)
	}
	if err := r.Status().Patch(ctx, m, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	if phase != before.Status.Phase {
		r.Log.Info("migration", "migration", name(m), "vmi", m.Spec.VMIName, "phase", phase, "why", why)
	}
	return nil
}

// beginMigration begins a migration, if it is still its turn.
func (r *reconciler) beginMigration(ctx context.Context, g *gathered) error {
	return r.inTurn(g.Migration, kubevirt.MigrationScheduling, func() error {
		return r.status(ctx, g.Migration, func(m *object) {
			m.Status.Phase = kubevirt.MigrationScheduling
			s := m.Status.MigrationState
			s.MigrationUID, s.VMIUID, s.GracePeriodSeconds = string(m.UID), string(g.VMI.UID), g.VMI.Spec.TerminationGracePeriodSeconds
			s.SourceNode, s.SourcePod, s.SourcePodUID = g.VMI.Node(), g.Source.Name, g.Source.UID
		})
	})
}

// errStale returns a conflict for a decision from a stale cache, so that it is
// retried.
func errStale() error {
	return apierrors.NewConflict(kubevirt.GroupVersion().WithResource("virtualmachineinstancemigrations").GroupResource(), "", nil)
}

func (r *reconciler) createPod(ctx context.Context, g *gathered) error {
	source := &corev1.Pod{}
	key := client.ObjectKey{Namespace: g.Migration.Namespace, Name: g.Source.Name}
	if err := r.Live.Get(ctx, key, source); err != nil {
		return fmt.Errorf("launcher pod %s: %w", key, err)
	}
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(g.VMI), vmi); err != nil {
		return fmt.Errorf("VMI of the target pod: %w", err)
	}
	if string(source.UID) != g.Source.UID || vmi.UID != g.VMI.UID {
		return errStale()
	}
	p := targetPod(wanted{g.Migration, vmi, r.Settings.Get(), migration.Avoided(g.others, string(vmi.UID))}, source)
	err := r.Create(ctx, p)
	switch {
	case err == nil:
		r.Log.Info("target pod made", "migration", name(g.Migration), "pod", p.Name)
		return nil
	case apierrors.IsAlreadyExists(err):
		there := &corev1.Pod{}
		if getErr := r.Live.Get(ctx, client.ObjectKeyFromObject(p), there); getErr != nil {
			return fmt.Errorf("target pod %s: %w", p.Name, getErr)
		}
		if there.Labels[kubevirt.MigrationJobLabel] != string(g.Migration.UID) {
			return r.fail(ctx, g, fmt.Sprintf("there is a pod %s already that is not of this migration", p.Name))
		}
		return nil // made by an earlier attempt: not in the cache yet
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsInvalid(err):
		// A quota, pod security or a webhook refuses it: retrying does not help.
		return r.fail(ctx, g, "the target pod cannot be made: "+oneLine(err))
	}
	r.phases.trouble(g.Migration, oneLine(err))
	return fmt.Errorf("target pod %s: %w", p.Name, err)
}

// schedule hands the migration to both agents. First it sets the labels by which their
// watches select it, then all parameters in one patch of the status.
func (r *reconciler) schedule(ctx context.Context, g *gathered) error {
	set := r.Settings.Get()
	source := migration.StateOf(g.Migration).SourceNode
	err := patch.MetadataAsRead(ctx, r.Client, g.Migration, "labels", map[string]any{
		migration.SourceNodeLabel: source, migration.TargetNodeLabel: g.Target.Node,
	})
	if err != nil {
		return err
	}
	if err := patch.Metadata(ctx, r.Client, g.VMI, "labels", map[string]any{kubevirt.MigrationTargetLabel: g.Target.Node}); err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.Migration.Namespace, Name: g.Target.Name, UID: types.UID(g.Target.UID)}}
	if err := patch.Metadata(ctx, r.Client, pod, "annotations", map[string]any{migration.HandedOverAnnotation: string(g.Migration.UID)}); err != nil {
		return err
	}
	err = r.inTurn(g.Migration, kubevirt.MigrationScheduled, func() error {
		return r.status(ctx, g.Migration, func(m *object) {
			m.Status.Phase = kubevirt.MigrationScheduled
			s := m.Status.MigrationState
			s.TargetNode, s.TargetPod, s.TargetPodUID = g.Target.Node, g.Target.Name, g.Target.UID
			s.Options = options(set)
		})
	})
	if err != nil {
		return err
	}
	r.Events.Eventf(g.VMI, g.Migration, corev1.EventTypeNormal, "MigrationScheduled", "Migrate",
		"migration %s is to move the VM from node %s to node %s", g.Migration.Name, source, g.Target.Node)
	return nil
}

func options(s evacuation.Settings) *kubevirt.MigrationOptions {
	const mib = 1 << 20
	return &kubevirt.MigrationOptions{
		BandwidthMiB:            (s.Bandwidth + mib - 1) / mib,
		CompletionTimeoutPerGiB: int64(s.CompletionPerGiB.Seconds()),
		ProgressTimeout:         int64(s.ProgressTimeout.Seconds()),
		AllowAutoConverge:       s.AllowAutoConverge,
		PauseAfter:              int64((s.PauseAfter + time.Second - 1) / time.Second),
	}
}

// emptyGraceSeconds is the grace period of a target pod to which no guest has come. The pod's own is for
// a guest: as long as it lasts, the VM's next target has no place on that node.
const emptyGraceSeconds = 2

// deletePod deletes the target pod with the UID that was read.
func (r *reconciler) deletePod(ctx context.Context, g *gathered) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.Migration.Namespace, Name: g.Target.Name}}
	if err := r.Delete(ctx, pod, client.Preconditions{UID: new(types.UID(g.Target.UID))}, client.GracePeriodSeconds(emptyGraceSeconds)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("target pod %s: %w", g.Target.Name, err)
	}
	r.Log.Info("deleting the target pod", "migration", name(g.Migration), "pod", g.Target.Name)
	return nil
}
