package migratable

import (
	"cmp"
	"fmt"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Launcher has what a VM's launcher pod depends on at this node.
type Launcher struct {
	// Reason is why the pod cannot be recreated on another node, or "".
	Reason string
	// Claims are the names of the PersistentVolumeClaims that it uses.
	Claims []string
	// Device is a device of the host that it has, or "". Those that are the same on each
	// host, such as KVM, are none.
	Device string
	// Paths are the host's files and directories that it may write to.
	Paths []string
}

// Volume is what the API server says of a claim and its volume.
type Volume struct {
	// Bound is why the volume cannot be used by two nodes at a time, or "".
	Bound string
}

// ofLauncher returns why the launcher pod or its program keep the VM here. The zero value means
// that they do not.
func (g Guest) ofLauncher() Verdict {
	switch {
	case g.InLauncher && g.Moving == (signals.Moving{}):
		return no(ReasonInLauncher, "the launcher's shim is too old to be moved")
	case g.Launcher.Reason != "":
		return no(ReasonLauncher, "%s", g.Launcher.Reason)
	case g.InLauncher && g.Launcher.Device != "":
		return no(ReasonHostDevice, "%s", g.Launcher.Device)
	case g.InLauncher && g.Moving.Able != signals.AbleOK:
		return no(ReasonInLauncher, "the launcher cannot send its guest: %s", cmp.Or(g.Moving.Able, "it does not say why"))
	case g.InLauncher && g.PodDisk != "":
		return no(ReasonDisks, "disk %s is in an emptyDir or the container itself, and would stay behind", g.PodDisk)
	}
	return Verdict{}
}

// ofVolumes returns why a volume of the launcher pod keeps the VM here. The zero value means that
// none does.
func (g Guest) ofVolumes() (Verdict, error) {
	for _, claim := range g.Launcher.Claims {
		v, err := g.Volume(claim)
		switch {
		case err != nil:
			return Verdict{}, fmt.Errorf("claim %s: %w", claim, err)
		case v.Bound != "":
			return no(ReasonDisks, "claim %s %s", claim, v.Bound), nil
		}
	}
	if !g.InLauncher {
		return Verdict{}, nil // the disks are those of the domain
	}
	for _, path := range g.Launcher.Paths {
		switch shared, err := g.SharedFile(path); {
		case err != nil:
			return Verdict{}, fmt.Errorf("file system of %s: %w", path, err)
		case !shared:
			return no(ReasonDisks, "%s, which the launcher may write to, is on a local file system of this node", path), nil
		}
	}
	return Verdict{}, nil
}
