package tunnel

import "slices"

// Disk has the facts about a domain's disk that a migration depends on.
type Disk struct {
	// File or Device is its path on the host; both are empty without a medium.
	File, Device string
	// Cache is libvirt's cache mode, empty for the hypervisor's default.
	Cache               string
	ReadOnly, Shareable bool
}

// Examine checks a domain as the target would when it arrives, and returns its disks. The
// error is a *Refusal if the target would refuse it.
func Examine(domain string, agreed Agreement) ([]Disk, error) {
	root, err := agreed.read(domain, newDomainSchema(), ReasonDomain)
	if err != nil {
		return nil, err
	}
	return disks(root), nil
}

// Sendable checks a domain that libvirt is to send directly, and returns its disks. The error
// is a *Refusal for devices that libvirt does not migrate (libvirt 9.0,
// qemuMigrationSrcIsAllowed); libvirt may refuse a domain for other reasons.
func Sendable(domain string) ([]Disk, error) {
	root, err := parse(domain, ReasonDomain)
	if err != nil {
		return nil, err
	}
	for _, d := range root.devices() {
		if slices.Contains([]string{"hostdev", "filesystem", "shmem"}, d.name) {
			return nil, refuse(ReasonDomain, "an element %s", quoted("domain/devices/"+d.name))
		}
	}
	return disks(root), nil
}

// EmulatesTPM reports whether a domain has a TPM that its host emulates.
func EmulatesTPM(domain string) bool {
	root, err := parse(domain, ReasonDomain)
	return err == nil && slices.ContainsFunc(root.devices(), func(d *node) bool {
		backend := d.child("backend")
		return d.name == "tpm" && backend != nil && backend.attr("type") == "emulator"
	})
}

func (n *node) devices() []*node {
	if devices := n.child("devices"); devices != nil {
		return devices.children
	}
	return nil
}

func disks(domain *node) (all []Disk) {
	for _, n := range domain.devices() {
		if n.name != "disk" {
			continue
		}
		is := Disk{ReadOnly: n.child("readonly") != nil, Shareable: n.child("shareable") != nil}
		if s := n.child("source"); s != nil {
			is.File, is.Device = s.attr("file"), s.attr("dev")
		}
		if d := n.child("driver"); d != nil {
			is.Cache = d.attr("cache")
		}
		all = append(all, is)
	}
	return all
}
