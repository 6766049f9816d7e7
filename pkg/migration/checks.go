package migration

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// check is a thing that may be wrong, and how it is told.
type check struct {
	wrong func(Facts) bool
	text  func(Facts) string
}

func firstOf(checks []check, f Facts) string {
	for _, c := range checks {
		if c.wrong(f) {
			return c.text(f)
		}
	}
	return ""
}

// cancelled tells why a migration is not to go on, in one line, or is empty.
func (f Facts) cancelled() string { return firstOf(cancellations, f) }

// invalid tells why a migration cannot begin at all, in one line, or is empty.
func (f Facts) invalid() string { return firstOf(invalidities, f) }

// waits tells what a valid migration waits for before it begins.
func (f Facts) waits() string {
	switch {
	case f.Launchers > 1:
		return "the VM has more than one launcher pod: it begins when one is left"
	case !f.Turn:
		return "the limits of the settings (parallelMigrationsPerCluster, parallelOutboundMigrationsPerNode) leave no room"
	}
	return ""
}

// forged names what a migration had with it that only the controller may write.
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

// targetFails tells why the target pod is of no use, in one line, or is empty.
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
	case !f.in(kubevirt.MigrationScheduling) || f.left() > 0:
		return ""
	case p.Unschedulable != "" && f.Now.Sub(p.Since) >= UnschedulableFor:
		return fmt.Sprintf("target pod %s found no node for %v: %s", p.Name, UnschedulableFor.Round(time.Minute), bounded(p.Unschedulable))
	}
	return fmt.Sprintf("target pod %s did not run within %v: see kubectl describe pod", p.Name, StartFor.Round(time.Minute))
}

func because(c *kubevirt.Condition) string {
	if why := cmp.Or(c.Message, c.Reason); why != "" {
		return ": " + bounded(why)
	}
	return ""
}

// bounded makes one line of what others wrote, and not a long one.
func bounded(s string) string {
	const most = 256
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// cancellations are read from top to bottom: the first that holds is why a
// migration is not to go on.
var cancellations = []check{
	{func(f Facts) bool { return f.Migration.DeletionTimestamp != nil }, func(Facts) string {
		return "the migration was deleted"
	}},
	{func(f Facts) bool { return f.pending() }, func(Facts) string {
		return "" // the checks say it better
	}},
	{func(f Facts) bool { return f.VMI == nil }, func(f Facts) string {
		return fmt.Sprintf("VirtualMachineInstance %q is gone", f.Migration.Spec.VMIName)
	}},
	{func(f Facts) bool { return !f.same() }, func(f Facts) string {
		return fmt.Sprintf("VirtualMachineInstance %q was deleted and made anew", f.Migration.Spec.VMIName)
	}},
	{func(f Facts) bool { return f.VMI.DeletionTimestamp != nil }, func(f Facts) string {
		return fmt.Sprintf("VirtualMachineInstance %q is being shut down", f.VMI.Name)
	}},
	{func(f Facts) bool { return f.VMI.Final() }, func(f Facts) string {
		return fmt.Sprintf("the VM has ended (%s)", f.VMI.Status.Phase)
	}},
	{func(f Facts) bool {
		return f.VMI.Node() != f.state().SourceNode && f.VMI.Node() != f.state().TargetNode
	}, func(f Facts) string {
		return fmt.Sprintf("the VM is on node %q, and no longer on node %q", f.VMI.Node(), f.state().SourceNode)
	}},
	{func(f Facts) bool {
		return !begun(f.Migration) && (f.Source == nil || f.Source.Ended || f.Source.UID != f.state().SourcePodUID)
	}, func(f Facts) string {
		return fmt.Sprintf("launcher pod %s has ended", f.state().SourcePod)
	}},
	{func(f Facts) bool { return f.Source != nil && f.Source.Deleting && !f.Source.Held }, func(f Facts) string {
		return fmt.Sprintf("launcher pod %s is being shut down", f.Source.Name)
	}},
	{func(f Facts) bool {
		return f.state().TargetPodUID != "" && (f.Target == nil || f.Target.Ended || f.Target.Deleting)
	}, func(f Facts) string {
		return fmt.Sprintf("target pod %s has ended", f.state().TargetPod)
	}},
}

// invalidities are read from top to bottom: the first that holds is why a
// migration cannot begin at all.
var invalidities = []check{
	{func(f Facts) bool { return f.Migration.Spec.VMIName == "" }, func(Facts) string {
		return "spec.vmiName is empty: name the VirtualMachineInstance to move"
	}},
	{func(f Facts) bool { return strings.Contains(f.Migration.Spec.VMIName, "/") }, func(f Facts) string {
		return fmt.Sprintf("spec.vmiName is %q: a migration moves a VM of its own namespace (%s), by its name alone", bounded(f.Migration.Spec.VMIName), f.Migration.Namespace)
	}},
	{func(f Facts) bool { return f.forged() != "" }, func(f Facts) string {
		return f.forged() + ": the target is the controller's to choose; make the migration without it"
	}},
	{func(f Facts) bool { return f.VMI == nil }, func(f Facts) string {
		return fmt.Sprintf("no VirtualMachineInstance %q in namespace %q", bounded(f.Migration.Spec.VMIName), f.Migration.Namespace)
	}},
	{func(f Facts) bool { return f.VMI.DeletionTimestamp != nil }, func(f Facts) string {
		return fmt.Sprintf("VirtualMachineInstance %q is being shut down", f.VMI.Name)
	}},
	{func(f Facts) bool { return f.VMI.Final() }, func(f Facts) string {
		return fmt.Sprintf("the VM has ended (%s)", f.VMI.Status.Phase)
	}},
	{func(f Facts) bool { return f.VMI.Status.Phase != kubevirt.VMIRunning && f.VMI.Status.Phase != "" }, func(f Facts) string {
		return fmt.Sprintf("the VM does not run (%s): it can be moved once it does", bounded(string(f.VMI.Status.Phase)))
	}},
	{func(f Facts) bool { return f.VMI.Node() == "" }, func(Facts) string {
		return "the VM has no node yet: it can be moved once it runs"
	}},
	{func(f Facts) bool { return f.Before != "" }, func(f Facts) string {
		return fmt.Sprintf("migration %s is to move this VM already", f.Before)
	}},
	{func(f Facts) bool { return f.VMI.ConditionIs(kubevirt.LiveMigratable, kubevirt.ConditionFalse) }, func(f Facts) string {
		return "the VM is not live-migratable" + because(f.VMI.Condition(kubevirt.LiveMigratable))
	}},
	{func(f Facts) bool { return f.OtherNodes == 0 }, func(f Facts) string {
		return fmt.Sprintf("the cluster has no node beside %q that could take the VM", f.VMI.Node())
	}},
	{func(f Facts) bool { return f.Launchers == 0 || f.Source == nil && f.Launchers == 1 }, func(f Facts) string {
		return fmt.Sprintf("the VM has no launcher pod that runs on its node %q", f.VMI.Node())
	}},
	{func(f Facts) bool { return f.Source != nil && f.Source.Deleting && !f.Source.Held }, func(f Facts) string {
		return fmt.Sprintf("launcher pod %s is being shut down", f.Source.Name)
	}},
}
