package mark

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/lookup"
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/internal/controller/settings"
	"github.com/vmgrace/vmgrace/pkg/evacuation"
)

// Marks moves VMs by their marks, which the evacuation controller acts on.
type Marks struct{ Client client.Client }

// Move marks a VM, unless it is marked for this. It fails with ErrChanged if the VMI
// is not any more as it was read.
func (m Marks) Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	return Set(ctx, m.Client, vmi.DeepCopy(), why)
}

// Moving tells whether a VM is to leave its node, and for which cause.
func (Marks) Moving(_ context.Context, vmi *kubevirt.VirtualMachineInstance) (cause string, moving bool, err error) {
	return vmi.Annotations[evacuation.CauseAnnotation], vmi.Marked(), nil
}

// TakeBack takes the mark that was seen, and no other.
func (m Marks) TakeBack(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	steps := append(patch.SameNode(vmi), patch.Operation{Op: "remove", Path: "/status/evacuationNodeName"})
	return changed(patch.Apply(ctx, m.Client, vmi, steps...))
}

// Migrations moves VMs by making their migrations itself, beside KubeVirt: what
// somebody else writes to a VMI's status KubeVirt takes back.
type Migrations struct {
	Client   client.Client // reads the cache
	Settings *settings.Live
	// Nodes may be read. Where not, each is taken for one that is Ready.
	Nodes bool
}

// NotNowError says why a VM is not moved now. Again is when the reason ends by time
// alone, 0 if it does not.
type NotNowError struct {
	Reason, Message string
	Again           time.Duration
}

func (e *NotNowError) Error() string { return e.Reason + ": " + e.Message }

// Move makes a migration of a VM. It fails with a *NotNowError where the VM is not to
// be moved now, by the rules that count for a mark, and with ErrChanged where somebody
// else has just made it.
func (m Migrations) Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	e, err := m.gather(ctx, vmi)
	if err != nil {
		return err
	}
	if s := evacuation.Next(e); s.Action != evacuation.Migrate {
		return &NotNowError{Reason: s.Reason, Message: s.Message, Again: s.Again}
	}
	made := Migration(&e, why.Cause)
	made.Spec.Priority = nil // an order of ours, which KubeVirt need not know
	err = m.Client.Create(ctx, made)
	switch {
	case apierrors.IsAlreadyExists(err): // another replica was first, or the cache is behind
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case err != nil:
		return fmt.Errorf("make migration %s/%s: %w", made.Namespace, made.Name, err)
	}
	return nil
}

// gather looks at what decides whether the VM is moved, as if it were marked.
func (m Migrations) gather(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (e evacuation.Evacuee, err error) {
	marked := vmi.DeepCopy()
	marked.Status.EvacuationNodeName = vmi.Node()
	e = evacuation.Evacuee{VMI: marked, NodeReady: true, Now: time.Now()}
	e.Strategy, _ = evacuation.StrategyOf(vmi, m.Settings.Get().EvictionStrategy)
	if m.Nodes {
		node := &corev1.Node{}
		if err := m.Client.Get(ctx, client.ObjectKey{Name: vmi.Node()}, node); client.IgnoreNotFound(err) != nil {
			return e, fmt.Errorf("node %s: %w", vmi.Node(), err)
		}
		e.NodeReady = lookup.Ready(node)
	}
	launchers, err := lookup.Launchers(ctx, m.Client, vmi)
	if err != nil {
		return e, err
	}
	e.Launchers = len(launchers)
	e.Migrations, err = lookup.Migrations(ctx, m.Client, client.ObjectKeyFromObject(vmi))
	return e, err
}

// Migration is a VM's next evacuation, an object to be made. Its name is the one
// that any other controller would give it: what exists already is not made again.
func Migration(e *evacuation.Evacuee, cause string) *kubevirt.VirtualMachineInstanceMigration {
	by := "" // of a former mark it says nothing
	if e.VMI.Marked() {
		by = e.VMI.Annotations[kubevirt.EvictionSourceAnnotation]
	}
	priority := evacuation.Priority(by)
	return &kubevirt.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.VMI.Namespace, Name: e.MigrationName(), GenerateName: evacuation.MigrationPrefix,
			Labels:      map[string]string{kubevirt.VMINameLabel: labelValue(e.VMI.Name)},
			Annotations: map[string]string{kubevirt.EvacuationMigrationAnnotation: e.VMI.Node(), evacuation.CauseAnnotation: cause},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance", Name: e.VMI.Name, UID: e.VMI.UID,
			}},
		},
		Spec: kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: e.VMI.Name, Priority: &priority},
	}
}

// labelValue leaves out what is too long for one.
func labelValue(s string) string {
	const most = 63
	if len(s) > most {
		return ""
	}
	return s
}

// Moving tells whether KubeVirt is to move a VM, or does, and for which cause: ""
// where it is not of vmgrace's making.
func (m Migrations) Moving(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (cause string, moving bool, err error) {
	all, err := lookup.Migrations(ctx, m.Client, client.ObjectKeyFromObject(vmi))
	if err != nil {
		return "", false, err
	}
	at := slices.IndexFunc(all, func(m kubevirt.VirtualMachineInstanceMigration) bool { return !m.Final() })
	if at < 0 {
		return "", vmi.Marked(), nil
	}
	return all[at].Annotations[evacuation.CauseAnnotation], true, nil
}

// TakeBack deletes the migration that was made for a VM's tainted node, unless it has
// begun.
func (m Migrations) TakeBack(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	all, err := lookup.Migrations(ctx, m.Client, client.ObjectKeyFromObject(vmi))
	if err != nil {
		return err
	}
	for i := range all {
		made := &all[i]
		if made.Annotations[evacuation.CauseAnnotation] != evacuation.CauseNodeTaint || evacuation.PhaseOf(made) != kubevirt.MigrationPending {
			continue
		}
		err := m.Client.Delete(ctx, made, client.Preconditions{UID: &made.UID, ResourceVersion: &made.ResourceVersion})
		if err != nil {
			return changed(fmt.Errorf("take migration %s/%s back: %w", made.Namespace, made.Name, err))
		}
	}
	return nil
}
