package launcher

import (
	"fmt"
	"slices"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/migration"
)

// Facts is what the phase of a VM is decided from.
type Facts struct {
	VMI *kubevirt.VirtualMachineInstance
	// Pods are the launcher pods that name the VMI, in any state.
	Pods []Pod
	// Migrations of the VMI, in any phase.
	Migrations []kubevirt.VirtualMachineInstanceMigration
	// GoneSucceeded is the UID of a pod that no longer exists, and had succeeded; "" if none is
	// known.
	GoneSucceeded string
}

// Step is what to write to the status of a VMI.
type Step struct {
	// Write means that something is to be written. Final: a phase that is never left, so that
	// only what the API server itself shows may decide it.
	Write, Final bool
	// Unknown means that the launcher is gone, and that Facts do not say how it ended.
	Unknown  bool
	Phase    kubevirt.VMIPhase
	Node     string
	Launcher *kubevirt.Launcher // nil: the VMI is left to others
	Why      string             // why it has ended, in one line
}

// Next returns what to write. Nothing is written to a VMI that has ended, or whose launcher was
// labelled by its maker: then somebody else writes its status, or nobody.
//
// The API does not show the process of a VM. Scheduled and Running are one: its launcher pod is
// ready, and so has begun to run QEMU.
func Next(f Facts) Step {
	v := f.VMI
	is := v.Status.Launcher
	switch {
	case v.Final(), is == nil && (v.Status.Phase != "" || v.Node() != ""):
		return Step{}
	case (is == nil || is.PodUID == "") && (f.byHand() || v.Node() != ""):
		return Step{Write: is != nil} // takes back that it waits for a launcher
	}
	s := f.wanted()
	if s.Phase == kubevirt.VMISucceeded || s.Phase == kubevirt.VMIFailed {
		if f.migrating() {
			return Step{} // its result says where the VM is
		}
		s.Final = true
	}
	s.Write = s.Phase != v.Status.Phase || s.Node != v.Status.NodeName || is == nil || *is != *s.Launcher
	return s
}

// byHand reports whether the maker of a pod has labelled it as the VMI's.
func (f Facts) byHand() bool {
	return slices.ContainsFunc(f.Pods, func(p Pod) bool { return p.VMIUID == string(f.VMI.UID) && !p.Linked && !p.Target })
}

// wanted returns what the status should be.
func (f Facts) wanted() Step {
	v := f.VMI
	s := Step{Phase: v.Status.Phase, Node: v.Status.NodeName, Launcher: &kubevirt.Launcher{}}
	if v.Status.Launcher != nil {
		s.Launcher = v.Status.Launcher
	}
	p := f.launcher()
	if p == nil {
		return f.without(s)
	}
	s.Launcher = &kubevirt.Launcher{Pod: p.Name, PodUID: p.UID}
	if s.Node == "" {
		s.Node = p.Node
	}
	switch {
	case p.Ended && p.Succeeded:
		s.Phase, s.Why = kubevirt.VMISucceeded, fmt.Sprintf("launcher pod %s has ended", p.Name)
	case p.Ended:
		s.Phase, s.Why = kubevirt.VMIFailed, fmt.Sprintf("launcher pod %s has failed", p.Name)
	case v.Status.Phase == kubevirt.VMIRunning: // also while its pod is not ready, or is being deleted
	case p.Ready:
		s.Phase = kubevirt.VMIRunning
	default:
		s.Phase = kubevirt.VMIScheduling
	}
	return s
}

// without returns the status of a VMI without a launcher pod.
func (f Facts) without(s Step) Step {
	switch had := s.Launcher; had.PodUID {
	case "":
		s.Phase = kubevirt.VMIPending
	case f.GoneSucceeded:
		s.Phase, s.Why = kubevirt.VMISucceeded, fmt.Sprintf("launcher pod %s has ended", had.Pod)
	default:
		s.Phase, s.Why, s.Unknown = kubevirt.VMIFailed, fmt.Sprintf("launcher pod %s is gone, and how it ended is not known", had.Pod), true
	}
	return s
}

// launcher returns the pod with the VM: the one that was recorded, or the target pod of the
// migration that has moved it since. It is nil if there is none.
func (f Facts) launcher() *Pod {
	own := slices.DeleteFunc(slices.Clone(f.Pods), func(p Pod) bool { return p.VMIUID != string(f.VMI.UID) })
	slices.SortFunc(own, older)
	node, recorded := f.VMI.Node(), ""
	if is := f.VMI.Status.Launcher; is != nil {
		recorded = is.PodUID
	}
	if recorded == "" {
		return find(own, func(p Pod) bool { return p.Linked && !p.Target })
	}
	moved := ""
	if s := f.VMI.Status.MigrationState; s != nil && s.Completed && s.TargetNode == node {
		moved = s.TargetPod
	}
	for _, is := range []func(Pod) bool{
		func(p Pod) bool { return p.Target && p.Name == moved },
		func(p Pod) bool { return p.UID == recorded && (node == "" || p.Node == node) },
		func(p Pod) bool { return p.Target && p.Node == node && !p.Ended }, // what has moved it is not in the status any more
	} {
		if p := find(own, is); p != nil {
			return p
		}
	}
	return nil
}

func find(pods []Pod, is func(Pod) bool) *Pod {
	if i := slices.IndexFunc(pods, is); i >= 0 {
		return &pods[i]
	}
	return nil
}

// migrating reports whether a migration of the VMI has begun and not ended.
func (f Facts) migrating() bool {
	return slices.ContainsFunc(f.Migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool {
		return !m.Final() && migration.NotBefore(&m, kubevirt.MigrationScheduling) && migration.StateOf(&m).VMIUID == string(f.VMI.UID)
	})
}
