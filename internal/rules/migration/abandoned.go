package migration

import (
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// AbandonedAfter is how old a target pod must be to count as abandoned: one that is being made
// may be known before its migration.
const AbandonedAfter = 5 * time.Minute

// AbandonedFacts holds the facts about a pod that was made as a migration's target. The caller
// has to read them from the API server.
type AbandonedFacts struct {
	Pod Pod
	// VMIName and VMIUID name the VMI that the pod was made for, MigrationUID the migration.
	VMIName, VMIUID, MigrationUID string
	// HandedOver means that the migration was handed to the agents: the guest may be in the pod.
	HandedOver bool
	// MigrationExists means that the API server has the migration.
	MigrationExists bool
	// VMI is the one of that name, nil if there is none.
	VMI *kubevirt.VirtualMachineInstance
	// LauncherRuns means that another launcher pod of the VM is Ready on the VM's node and is
	// not being deleted.
	LauncherRuns bool
	Now          time.Time
}

// Abandoned decides whether a target pod is deleted because neither a migration nor a VM needs
// it. A pod on the VM's node may be its launcher. Without a launcher on the VM's node the guest
// may be in this pod: somebody may have removed the migration before its end was written.
func Abandoned(f AbandonedFacts) (remove bool, why string) {
	p := &f.Pod
	switch {
	case p.Name != TargetPodName(f.VMIName, f.MigrationUID), p.Ended, p.Deleting, f.MigrationExists, f.HandedOver, f.Now.Sub(p.Created) < AbandonedAfter:
		return false, ""
	case f.VMI != nil && (p.Node == f.VMI.Node() || f.VMI.Node() == ""):
		return false, ""
	case f.VMI == nil || string(f.VMI.UID) != f.VMIUID:
		return true, "its migration and its VirtualMachineInstance do not exist"
	case !f.LauncherRuns:
		return false, ""
	}
	return true, fmt.Sprintf("its migration does not exist, and the VM is on node %s", f.VMI.Node())
}

// Forgotten reports whether a migration has a next step that needs nobody else. After a while
// that means that no event has told of it. vmiGone means that its VMI does not exist,
// targetGone that its target's node does not.
func Forgotten(m *kubevirt.VirtualMachineInstanceMigration, vmiGone, targetGone bool) (yes bool, why string) {
	f := Facts{Migration: m, TargetNode: NodeFacts{Gone: targetGone}}
	switch {
	case !m.Final():
		aborted := begun(m) && f.state().AbortRequested // the source's agent is asked
		return vmiGone && !aborted, fmt.Sprintf("VirtualMachineInstance %q does not exist", m.Spec.VMIName)
	case !slices.Contains(m.Finalizers, Finalizer):
		return false, ""
	}
	return m.Status.Phase == kubevirt.MigrationSucceeded || f.removable(), "it has ended, and nothing is left of it"
}

// NeedsLabel reports whether the VMI's label with the target's node is a migration's.
func NeedsLabel(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return !m.Final() || slices.Contains(m.Finalizers, Finalizer)
}
