package evacuation

import (
	"fmt"
	"strings"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Hotplug reports whether a pod holds a hotplugged volume of a VM.
func Hotplug(name, appLabel string) bool {
	return appLabel == kubevirt.HotplugApp || strings.HasPrefix(name, kubevirt.HotplugPrefix)
}

// HotplugPod has the properties of a pod that holds a hotplugged volume.
type HotplugPod struct {
	Namespace, Name    string
	Finished, Deleting bool
	// Owner is the launcher pod that owns it. It is nil unless there is exactly one owner,
	// which exists.
	Owner *Pod
}

// AdmitHotplug decides about an eviction that would remove a disk from a running VM,
// whatever the strategy. vmi is the owner's, nil if it does not exist.
func AdmitHotplug(p *HotplugPod, vmi *kubevirt.VirtualMachineInstance) Admission {
	allow := func(reason string) Admission {
		return Admission{Verdict: Allow, Reason: reason, Strategy: NotApplicable}
	}
	switch {
	case p.Finished || p.Deleting:
		return allow("PodFinished")
	case p.Owner == nil || !p.Owner.OfVM():
		return allow("OwnerGone")
	case vmi == nil || string(vmi.UID) != p.Owner.VMIUID || vmi.Final():
		return allow("VMIGone")
	default:
		return Admission{
			Verdict: Refuse, Reason: "VolumeInUse", Strategy: NotApplicable,
			Message: fmt.Sprintf("cannot evict hotplug pod: %s associated with running vmi: %s in namespace %s", p.Name, vmi.Name, p.Namespace),
		}
	}
}
