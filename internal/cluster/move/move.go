package move

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// Marks moves VMs by marking them; the evacuation controller migrates marked VMs.
type Marks struct{ Client client.Client }

// Move marks a VM. It fails with ErrChanged if the VMI has changed since it was read.
func (m Marks) Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	return Set(ctx, m.Client, vmi.DeepCopy(), why)
}

// Moving reports whether a VM is marked, and for which cause.
func (Marks) Moving(_ context.Context, vmi *kubevirt.VirtualMachineInstance) (cause string, moving bool, err error) {
	return evacuation.ExplanationOf(vmi).Cause, vmi.Marked(), nil
}

// Cancel removes the mark, unless the VMI has changed since it was read: another cause may
// have marked it anew.
func (m Marks) Cancel(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	return changed(patch.Status(ctx, m.Client, vmi.DeepCopy(), Unset(vmi)...))
}

// Migrations moves VMs by creating their migrations. It is for clusters with KubeVirt,
// which reverts what others write to a VMI's status.
type Migrations struct {
	Client   client.Client // reads the cache
	Observer Observer
}

// inFlight is part of the error of KubeVirt's webhook for a VM that has a migration already,
// which the cache does not show yet.
const inFlight = "in-flight migration detected"

// messageMost is the longest message of a NotNowError that has the text of others.
const messageMost = 256

// NotNowError is why a VM cannot be moved now. Again is how long the reason lasts, 0 if
// only an event can end it.
type NotNowError struct {
	Reason, Message string
	Again           time.Duration
}

func (e *NotNowError) Error() string { return e.Reason + ": " + e.Message }

// Move creates a migration of a VM. It fails with a *NotNowError if the rules for marked
// VMs allow none now, and with ErrChanged if it exists already.
func (m Migrations) Move(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, why evacuation.Explanation) error {
	marked := vmi.DeepCopy()
	marked.Status.EvacuationNodeName = vmi.Node()
	v, err := m.Observer.Observe(ctx, marked)
	if err != nil {
		return err
	}
	v.MaxAttempts = 0 // nobody would report it here, where VMIs are KubeVirt's
	if s := evacuation.Next(v.Evacuee); s.Action != evacuation.Migrate {
		return &NotNowError{Reason: s.Reason, Message: s.Message, Again: s.Again}
	}
	made := Migration(&v.Evacuee, why.Cause)
	made.Spec.Priority = nil // priorities are vmgrace's own
	err = m.Client.Create(ctx, made)
	switch {
	case apierrors.IsAlreadyExists(err): // created by another replica, or the cache is stale
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case err != nil && strings.Contains(err.Error(), inFlight):
		return &NotNowError{Reason: "Migrating", Message: oneline.Cut(err.Error(), messageMost)}
	case err != nil:
		return fmt.Errorf("make migration %s/%s: %w", made.Namespace, made.Name, err)
	}
	return nil
}

// Migration returns the object of a VM's next evacuation. Each replica computes the same
// name, so it is created once.
func Migration(e *evacuation.Evacuee, cause string) *kubevirt.VirtualMachineInstanceMigration {
	why := evacuation.ExplanationOf(e.VMI)
	return &kubevirt.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.VMI.Namespace, Name: e.MigrationName(), GenerateName: evacuation.MigrationPrefix,
			Labels:      map[string]string{kubevirt.VMINameLabel: labelValue(e.VMI.Name)},
			Annotations: map[string]string{kubevirt.EvacuationMigrationAnnotation: e.VMI.Node(), evacuation.CauseAnnotation: cause},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance", Name: e.VMI.Name, UID: e.VMI.UID,
			}},
		},
		Spec: kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: e.VMI.Name, Priority: new(evacuation.Priority(why.Source()))},
	}
}

// labelValue returns s, or "" if s is too long for a label.
func labelValue(s string) string {
	const most = 63
	if len(s) > most {
		return ""
	}
	return s
}

// Moving reports whether KubeVirt is moving a VM or is asked to, and for which cause. The
// cause is empty if vmgrace did not ask for it.
func (m Migrations) Moving(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (cause string, moving bool, err error) {
	all, err := index.Migrations(ctx, m.Client, vmi)
	if err != nil {
		return "", false, err
	}
	at := slices.IndexFunc(all, func(m kubevirt.VirtualMachineInstanceMigration) bool { return !m.Final() })
	if at < 0 {
		return "", vmi.Marked(), nil
	}
	return all[at].Annotations[evacuation.CauseAnnotation], true, nil
}

// Cancel deletes the VM's pending migration that a tainted node has caused.
func (m Migrations) Cancel(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	all, err := index.Migrations(ctx, m.Client, vmi)
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
