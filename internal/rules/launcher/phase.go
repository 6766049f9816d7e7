package launcher

import (
	"fmt"
	"slices"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// Facts is what the phase of a VM is decided from.
type Facts struct {
	VMI *kubevirt.VirtualMachineInstance
	// Pods are the launcher pods that name the VMI, in any state.
	Pods []Pod
	// Migrations of the VMI, in any phase.
	Migrations []kubevirt.VirtualMachineInstanceMigration
	// Gone is the last known state of a pod that no longer exists; zero if none is known.
	Gone Pod
	// Others means that another program writes the phase of the VMI.
	Others bool
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

// Next returns what to write. Nothing is written to a VMI whose phase another program writes, or
// that was placed by hand and has no launcher pod: its VM may run without one. A VM that has ended
// runs again only in a pod that its maker has labelled as the VMI's.
//
// The API does not show the process of a VM. Scheduled and Running are one: its launcher pod is
// ready, and so has begun to run QEMU, or waits for its domain.
func Next(f Facts) Step {
	v := f.VMI
	is := v.Status.Launcher
	switch p := f.launcher(); {
	case is == nil && v.Status.Phase != "":
		return Step{}
	case f.Others:
		return Step{Write: is != nil, Phase: v.Status.Phase} // takes back that it writes the phase
	case (is == nil || is.PodUID == "") && p == nil && v.Node() != "":
		return Step{Write: is != nil} // takes back that it waits for a launcher
	case v.Final() && !p.again(is):
		return Step{}
	}
	s := f.wanted()
	if s.Phase.Final() {
		if f.migrating() {
			return Step{} // its result says where the VM is
		}
		s.Final = true
	}
	s.Write = s.Phase != v.Status.Phase || s.Node != v.Status.NodeName || is == nil || *is != *s.Launcher
	return s
}

// again reports whether a pod's maker has made it the VMI's launcher after the recorded one.
func (p *Pod) again(recorded *kubevirt.Launcher) bool {
	return p != nil && p.byHand() && recorded != nil && recorded.PodUID != "" && recorded.PodUID != p.UID
}

func (p *Pod) byHand() bool { return !p.Linked && !p.Target && !p.Ended }

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
	again := p.again(v.Status.Launcher)
	s.Launcher = &kubevirt.Launcher{Pod: p.Name, PodUID: p.UID}
	if s.Node == "" && (v.Node() == "" || v.Node() == p.Node) || again && p.Node != "" {
		s.Node = p.Node
	}
	switch {
	case p.Ended:
		s.Phase, s.Why = p.end()
	case v.Status.Phase == kubevirt.VMIRunning && !again: // also while its pod is not ready, or is being deleted
	case p.Ready:
		s.Phase = kubevirt.VMIRunning
	default:
		s.Phase = kubevirt.VMIScheduling
	}
	return s
}

// without returns the status of a VMI without a launcher pod.
func (f Facts) without(s Step) Step {
	switch had := s.Launcher; {
	case had.PodUID == "":
		s.Phase = kubevirt.VMIPending
	case had.PodUID == f.Gone.UID && f.Gone.Ended:
		s.Phase, s.Why = f.Gone.end()
	default:
		s.Phase, s.Why, s.Unknown = kubevirt.VMIFailed, fmt.Sprintf("launcher pod %s is gone, and how it ended is not known", had.Pod), true
	}
	return s
}

// end returns the phase of a VM whose launcher pod has ended, and why.
func (p *Pod) end() (phase kubevirt.VMIPhase, why string) {
	switch {
	case p.Succeeded:
		return kubevirt.VMISucceeded, fmt.Sprintf("launcher pod %s has ended", p.Name)
	case p.How == "":
		return kubevirt.VMIFailed, fmt.Sprintf("launcher pod %s has failed", p.Name)
	default:
		return kubevirt.VMIFailed, fmt.Sprintf("launcher pod %s has failed: %s", p.Name, p.How)
	}
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
	moved := ""
	if s := f.VMI.Status.MigrationState; s != nil && s.Completed && s.TargetNode == node {
		moved = s.TargetPod
	}
	known := func(p Pod) bool { return p.UID == recorded && (node == "" || p.Node == node) }
	if recorded == "" {
		known = func(p Pod) bool { return !p.Target }
	}
	for _, is := range []func(Pod) bool{
		func(p Pod) bool { return p.Target && p.Name == moved },
		func(p Pod) bool { return known(p) && !p.Ended },
		func(p Pod) bool { return p.Target && p.Node != "" && p.Node == node && !p.Ended }, // what has moved it is not in the status any more
		func(p Pod) bool { return p.byHand() },
		known,
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
