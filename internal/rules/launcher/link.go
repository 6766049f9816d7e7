package launcher

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
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
	// was not written by the pod's maker. Owned means that this VMI is an owner of the pod, which a
	// cache does not show.
	VMIUID        string
	Linked, Owned bool
	// Target means that a migration has made it.
	Target bool
	// Ready means that its containers run. Deleting: it is being deleted. Ended: its containers
	// have ended for good; Succeeded: all of them with 0.
	Ready, Deleting, Ended, Succeeded bool
	// How is what kubelet says of the end of a pod that has failed, in one line.
	How string
}

// lost reports whether a pod is linked to a VMI that is gone, as one restored from a backup is. A
// former VMI's pod is owned by that. The link is made anew.
func (p *Pod) lost(uid string) bool { return p.Linked && !p.Owned && p.VMIUID != uid }

// Refusal returns why no pod may become the launcher of a VMI, in words that follow its name, or
// "". One VMI has one launcher in its life, and a migration makes the others. pods are all that
// name the VMI.
func Refusal(vmi *kubevirt.VirtualMachineInstance, pods []Pod) string {
	own := slices.IndexFunc(pods, func(p Pod) bool { return p.VMIUID == string(vmi.UID) })
	switch is := vmi.Status.Launcher; {
	case vmi.DeletionTimestamp != nil:
		return "is being deleted: apply its file again when it is gone"
	case vmi.Final():
		return fmt.Sprintf("has ended (%s): delete it, and apply its file again", vmi.Status.Phase)
	case own >= 0:
		return "has launcher pod " + pods[own].Name + " already"
	case is != nil && is.PodUID != "":
		return "had launcher pod " + is.Pod + ": delete it, and apply its file again"
	default:
		return Living(string(vmi.UID), slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool {
			return p.VMIUID == "" || p.lost(string(vmi.UID)) && !p.Deleting && !p.Target
		}))
	}
}

// Living returns which launcher pod runs or may run the VM that is named, in words that follow the
// name of its VMI, or "". The guest would run twice in a second one that is none of a migration's.
// uid is the VMI's, "" if there is none.
func Living(uid string, pods []Pod) string {
	at := slices.IndexFunc(pods, func(p Pod) bool { return !p.Ended })
	switch {
	case at < 0:
		return ""
	case pods[at].VMIUID != "" && pods[at].VMIUID != uid:
		return "has launcher pod " + pods[at].Name + " of another VMI of this name, and it has not ended"
	default:
		return "has launcher pod " + pods[at].Name + " already"
	}
}

// ClaimFor is for how long a claim counts. By then its pod is in every cache, or was not made.
const ClaimFor = 30 * time.Second

// Claimed returns why a pod with this claim cannot become the launcher of a VMI just now, in words
// that follow the VMI's name, or "".
func Claimed(vmi *kubevirt.VirtualMachineInstance, claim string, now time.Time) string {
	c := vmi.Status.Claim
	if c == nil || c.Pod == claim || now.Sub(c.At.Time).Abs() >= ClaimFor {
		return ""
	}
	return fmt.Sprintf("is getting launcher pod %s: if that does not come, try again after %v", c.Pod, ClaimFor)
}

// Unlinked returns the pods that live and belong to no VMI yet, the oldest first. uid is that of the
// VMI that they name.
func Unlinked(uid string, pods []Pod) []Pod {
	all := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool {
		return p.VMIUID != "" && !p.lost(uid) || p.Target || p.Ended || p.Deleting
	})
	slices.SortFunc(all, older)
	return all
}

// Several returns the names of the launcher pods in which the guest of a VMI may run more than once:
// two or more that live, and are no migration's pair.
func Several(f Facts) []string {
	var names []string
	for _, p := range f.Pods {
		source := slices.ContainsFunc(f.Migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool {
			return migration.StateOf(&m).SourcePod == p.Name
		})
		if moved := p.Target && p.Node == f.VMI.Node() && !f.migrating(); !p.Ended && (moved || !p.Target && !source) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	if len(names) < 2 {
		return nil
	}
	return names
}

func older(a, b Pod) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) }
