package migratable

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Guest has the facts that decide whether a VM can be live-migrated.
type Guest struct {
	// Domain is the definition that the hypervisor would send.
	Domain hypervisor.Definition
	// Off is why this node takes no part in migrations, or "".
	Off string
	// InLauncher means that the process runs in the launcher pod, not in the node's
	// libvirt.
	InLauncher bool
	// Moving is what the launcher says of migrations, if the process is in its pod.
	Moving signals.Moving
	// PodDisk is a disk that the process writes to and that goes with its pod, or "".
	PodDisk  string
	Launcher Launcher
	// Volume returns what the API server says of a claim of the launcher pod.
	Volume func(claim string) (Volume, error)
	// Native means that libvirt sends it directly. Otherwise Agreed is what other nodes
	// accept.
	Native bool
	Agreed tunnel.Agreement
	// SharedFile reports whether a file is on a shared file system, by libvirt's rules. An
	// error means unknown.
	SharedFile func(path string) (bool, error)
}

// Verdict is the condition LiveMigratable of a VMI. Reason and Message are empty if Status
// is True.
type Verdict struct{ Status, Reason, Message string }

// Reasons of a VMI that cannot be live-migrated; KubeVirt's own reason if it has one.
const (
	ReasonOff        = "MigrationsOff"
	ReasonNoDomain   = "NoDomain"
	ReasonInLauncher = "ProcessInLauncherPod"
	ReasonLauncher   = "LauncherNotLiveMigratable"
	ReasonAutostart  = "DomainAutostarts"
	ReasonDisks      = "DisksNotLiveMigratable"
	ReasonHostDevice = "HostDeviceNotLiveMigratable"
	ReasonVirtIOFS   = "VirtIOFSNotLiveMigratable"
	ReasonDomain     = "DomainNotLiveMigratable"
)

// tpmStates is where libvirt keeps the states of emulated TPMs. libvirt 9.0 and 11.3 do not
// see that two hosts share it, and the one that fails to start a TPM there removes its state.
const tpmStates = "/var/lib/libvirt/swtpm"

// maxMessage bounds a condition's message, which may contain text of the domain, in bytes.
const maxMessage = 512

// Judge decides whether a VM can be live-migrated. The first obstacle is the reason. An
// error means that it cannot be determined now.
func Judge(g Guest) (Verdict, error) {
	if g.Off != "" {
		return no(ReasonOff, "%s", g.Off), nil
	}
	if v := g.ofLauncher(); v != (Verdict{}) {
		return v, nil
	}
	switch v, err := g.ofVolumes(); {
	case err != nil || v != (Verdict{}):
		return v, err
	case g.InLauncher:
		return Verdict{Status: kubevirt.ConditionTrue}, nil
	}
	return g.ofDomain()
}

// ofDomain decides about a domain of the node's libvirt whose launcher pod can be anywhere.
func (g Guest) ofDomain() (Verdict, error) {
	if g.Domain.Autostart {
		return no(ReasonAutostart, "the domain starts by itself with this node's libvirt, and would be there twice: virsh autostart --disable"), nil
	}
	if g.Domain.Snapshots > 0 {
		return no(ReasonDomain, "libvirt migrates no domain with snapshots, and keeps %d of this one: virsh snapshot-delete --metadata", g.Domain.Snapshots), nil
	}
	disks, who, err := g.disks()
	if refusal, is := errors.AsType[*tunnel.Refusal](err); is {
		return no(reasonOf(refusal), "%s: %s", who, refusal.Text), nil
	}
	if err != nil {
		return Verdict{}, err
	}
	if tunnel.EmulatesTPM(g.Domain.XML) {
		switch shared, err := g.SharedFile(tpmStates); {
		case err != nil:
			return Verdict{}, fmt.Errorf("file system of %s: %w", tpmStates, err)
		case shared:
			return no(ReasonDomain, "its TPM's state is in %s, which is on a shared file system: a migration that fails would delete it", tpmStates), nil
		}
	}
	for _, d := range disks {
		if why, err := g.immovable(d); err != nil || why != "" {
			if err != nil {
				return Verdict{}, err
			}
			return no(ReasonDisks, "%s", why), nil
		}
	}
	return Verdict{Status: kubevirt.ConditionTrue}, nil
}

// disks returns the domain's disks, or a *tunnel.Refusal; who names the one that refuses.
func (g Guest) disks() (disks []tunnel.Disk, who string, err error) {
	if g.Native {
		disks, err = tunnel.Sendable(g.Domain.XML)
		return disks, "libvirt would not send it", err
	}
	disks, err = tunnel.Examine(g.Domain.XML, g.Agreed)
	return disks, "other nodes would not let it in", err
}

// immovable returns why libvirt would not migrate a VM with this disk, or "" (libvirt 9.0,
// qemuMigrationSrcIsSafe).
func (g Guest) immovable(d tunnel.Disk) (string, error) {
	if d.ReadOnly || d.File == "" && d.Device == "" {
		return "", nil
	}
	if d.File != "" {
		switch shared, err := g.SharedFile(d.File); {
		case err != nil:
			return "", fmt.Errorf("file system of %s: %w", d.File, err)
		case !shared:
			return fmt.Sprintf("disk %s is on a local file system of this node", d.File), nil
		}
	}
	if d.Shareable || d.Cache == "none" || d.Cache == "directsync" || g.Domain.DropsCaches {
		return "", nil
	}
	return fmt.Sprintf("disk %s%s has cache mode %q, which is safe only as none or directsync", d.File, d.Device, d.Cache), nil
}

func reasonOf(r *tunnel.Refusal) string {
	for device, reason := range map[string]string{"hostdev": ReasonHostDevice, "filesystem": ReasonVirtIOFS, "disk": ReasonDisks} {
		if strings.Contains(r.Text, `"domain/devices/`+device) {
			return reason
		}
	}
	return ReasonDomain
}

func no(reason, format string, args ...any) Verdict {
	return Verdict{kubevirt.ConditionFalse, reason, oneline.Cut(fmt.Sprintf(format, args...), maxMessage)}
}
