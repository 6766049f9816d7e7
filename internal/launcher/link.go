package launcher

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// LinkedAnnotation on a launcher pod is the UID of the VMI to which this project has linked it.
// The pod has the label created-by from there, not from its maker.
const LinkedAnnotation = "vmgrace.io/linked"

// Pod has the properties of a launcher pod that names a VMI.
type Pod struct {
	Name, UID string
	Node      string // "" until it is scheduled
	Created   time.Time
	// VMIUID is that of the label created-by, "" without the label. Linked means that the label
	// was not written by the pod's maker.
	VMIUID string
	Linked bool
	// Target means that a migration has made it.
	Target bool
	// Ready means that its containers run. Deleting: it is being deleted. Ended: its containers
	// have ended for good; Succeeded: all of them with 0.
	Ready, Deleting, Ended, Succeeded bool
}

// Refusal returns why no pod may become the launcher of a VMI, in words that follow its name, or
// "". One VMI has one launcher in its life, and a migration makes the others. pods are all that
// name the VMI.
func Refusal(vmi *kubevirt.VirtualMachineInstance, pods []Pod) string {
	own := slices.IndexFunc(pods, func(p Pod) bool { return p.VMIUID == string(vmi.UID) })
	switch is := vmi.Status.Launcher; {
	case vmi.DeletionTimestamp != nil:
		return "is being deleted"
	case vmi.Final():
		return fmt.Sprintf("has ended (%s): delete it, and make both anew", vmi.Status.Phase)
	case own >= 0:
		return "has launcher pod " + pods[own].Name + " already"
	case is != nil && is.PodUID != "":
		return "had launcher pod " + is.Pod + ": delete it, and make both anew"
	default:
		return ""
	}
}

// Living returns the name of a launcher pod in which the VM of a VMI runs or may run, and "" if
// there is none. The guest would run twice in a second one that is none of a migration's.
func Living(vmi *kubevirt.VirtualMachineInstance, pods []Pod) string {
	at := slices.IndexFunc(pods, func(p Pod) bool { return p.VMIUID == string(vmi.UID) && !p.Ended })
	if at < 0 {
		return ""
	}
	return pods[at].Name
}

// Unlinked returns the pods that live and belong to no VMI yet, the oldest first.
func Unlinked(pods []Pod) []Pod {
	all := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return p.VMIUID != "" || p.Target || p.Ended || p.Deleting })
	slices.SortFunc(all, older)
	return all
}

func older(a, b Pod) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) }
