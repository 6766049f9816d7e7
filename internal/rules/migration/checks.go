package migration

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// cancelled returns why a migration must not continue, in one line, or "". The first reason
// counts.
func (f Facts) cancelled() string {
	switch {
	case f.Migration.DeletionTimestamp != nil:
		return "the migration was deleted"
	case f.pending():
		return "" // invalid has the better message
	case f.VMI == nil:
		return fmt.Sprintf("VirtualMachineInstance %q is gone", f.Migration.Spec.VMIName)
	case !f.same():
		return f.anew()
	case f.vmEnds() != "":
		return f.vmEnds()
	case f.VMI.Node() != f.state().SourceNode && f.VMI.Node() != f.state().TargetNode:
		return fmt.Sprintf("the VM is on node %q, and no longer on node %q", f.VMI.Node(), f.state().SourceNode)
	}
	return f.podEnds()
}

func (f Facts) anew() string {
	return fmt.Sprintf("VirtualMachineInstance %q was deleted and made anew", f.Migration.Spec.VMIName)
}

func (f Facts) podEnds() string {
	switch s := f.state(); {
	case !begun(f.Migration) && (f.Source == nil || f.Source.Ended || f.Source.UID != s.SourcePodUID):
		return fmt.Sprintf("launcher pod %s has ended", s.SourcePod)
	case f.launcherEnds() != "" && !f.goesOn():
		return f.launcherEnds()
	case s.TargetPodUID != "" && (f.Target == nil || f.Target.Ended || f.Target.Deleting):
		return fmt.Sprintf("target pod %s has ended", s.TargetPod)
	}
	return ""
}

func (f Facts) vmEnds() string {
	switch {
	case f.VMI.DeletionTimestamp != nil:
		return fmt.Sprintf("VirtualMachineInstance %q is being shut down", f.VMI.Name)
	case f.VMI.Final():
		return fmt.Sprintf("the VM has ended (%s)", f.VMI.Status.Phase)
	}
	return ""
}

func (f Facts) launcherEnds() string {
	if f.Source != nil && f.Source.Deleting && !f.Source.Held {
		return fmt.Sprintf("launcher pod %s is being shut down", f.Source.Name)
	}
	return ""
}

// goesOn reports whether the agents move the guest, or are about to. They may do so until the
// shutdown of the source has to begin. The source's agent decides when that is, and reports
// that the guest stays.
func (f Facts) goesOn() bool {
	return f.Source.InTime && (begun(f.Migration) || f.in(kubevirt.MigrationScheduled, kubevirt.MigrationPreparingTarget, kubevirt.MigrationTargetReady))
}

// invalid returns why a migration cannot begin at all, in one line, or "". The first reason
// counts.
func (f Facts) invalid() string {
	switch name := f.Migration.Spec.VMIName; {
	case misnamed(f.Migration) != "":
		return misnamed(f.Migration)
	case f.forged() != "":
		return f.forged() + ": the target is the controller's to choose; make the migration without it"
	case f.VMI == nil:
		return fmt.Sprintf("no VirtualMachineInstance %q in namespace %q", oneline.Cut(name, 256), f.Migration.Namespace)
	case !f.same():
		return f.anew()
	case f.vmEnds() != "":
		return f.vmEnds()
	case f.VMI.Status.Phase != kubevirt.VMIRunning && f.VMI.Status.Phase != "":
		return fmt.Sprintf("the VM does not run (%s): it can be moved once it does", oneline.Cut(string(f.VMI.Status.Phase), 256))
	case f.VMI.Node() == "":
		return "the VM has no node yet: it can be moved once it runs"
	case f.Before != "":
		return fmt.Sprintf("migration %s is to move this VM already", f.Before)
	case f.VMI.ConditionIs(kubevirt.LiveMigratable, kubevirt.ConditionFalse):
		return "the VM is not live-migratable" + because(f.VMI.Condition(kubevirt.LiveMigratable))
	case f.OtherNodes == 0:
		return fmt.Sprintf("the cluster has no node beside %q that could take the VM", f.VMI.Node())
	case f.Launchers == 0 || f.Source == nil && f.Launchers == 1:
		return fmt.Sprintf("the VM has no launcher pod that runs on its node %q", f.VMI.Node())
	}
	return f.launcherEnds()
}

// misnamed returns why a migration names no VM, or "".
func misnamed(m *kubevirt.VirtualMachineInstanceMigration) string {
	switch name := m.Spec.VMIName; {
	case name == "":
		return "spec.vmiName is empty: name the VirtualMachineInstance to move"
	case strings.Contains(name, "/"):
		return fmt.Sprintf("spec.vmiName is %q: a migration moves a VM of its own namespace (%s), by its name alone", oneline.Cut(name, 256), m.Namespace)
	}
	return ""
}

// waits returns what a valid migration waits for before it begins, or "".
func (f Facts) waits() string {
	switch {
	case f.Launchers > 1:
		return fmt.Sprintf("the VM has more than one launcher pod: it begins when one is left; see kubectl get pods -l %s=%s", kubevirt.CreatedByLabel, f.VMI.UID)
	case !f.Turn && f.Undecided != "":
		return fmt.Sprintf("undecided migrations keep places of its node, such as %s, whose VM has the condition %s; %s", f.Undecided, kubevirt.MigrationUndecided, kubevirt.FailureNoRoom)
	case !f.Turn:
		return kubevirt.FailureNoRoom
	}
	return ""
}

// forged names a field of a new migration that only the controller may write, or "".
func (f Facts) forged() string {
	for _, label := range []string{SourceNodeLabel, TargetNodeLabel} {
		if _, there := f.Migration.Labels[label]; there {
			return "label " + label + " is set"
		}
	}
	if f.state().TargetNode != "" || f.state().TargetPod != "" || f.state().TargetNodeAddress != "" {
		return "status.migrationState names a target"
	}
	return ""
}

// targetFails returns why the target pod cannot be used, in one line, or "".
func (f Facts) targetFails() string {
	p := f.Target
	switch {
	case p == nil:
		return ""
	case p.Foreign:
		return fmt.Sprintf("there is a pod %s already that is not of this migration", p.Name)
	case p.Ended:
		return fmt.Sprintf("target pod %s has ended", p.Name)
	case p.Deleting:
		return fmt.Sprintf("target pod %s was deleted", p.Name)
	case p.Node != "" && p.Node == f.state().SourceNode:
		return fmt.Sprintf("target pod %s is on the VM's own node %s", p.Name, p.Node)
	case !f.in(kubevirt.MigrationScheduling) || f.left() > 0 || p.Runs && f.Turn && f.left() > -MakeTimeout:
		return ""
	}
	return f.targetLate()
}

func because(c *kubevirt.Condition) string {
	if why := cmp.Or(c.Message, c.Reason); why != "" {
		return ": " + oneline.Cut(why, 256)
	}
	return ""
}
