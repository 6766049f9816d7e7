package tunnel

import "slices"

// Disk is a disk of a domain, as far as a migration depends on it.
type Disk struct {
	// File and Device say where it is on the host; both are empty where it has no
	// medium.
	File, Device string
	// Cache is libvirt's cache mode, empty for the hypervisor's default.
	Cache               string
	ReadOnly, Shareable bool
}

// Examine reads a domain as a node that lets in what was agreed would read it when
// the domain arrives, and returns its disks. What would not be let in is a *Refusal.
func Examine(domain string, agreed Agreement) ([]Disk, error) {
	root, err := agreed.read(domain, newDomainSchema(), ReasonDomain)
	if err != nil {
		return nil, err
	}
	return disks(root), nil
}

// Sendable reads a domain that libvirt is to send by itself, and returns its disks. It
// is a *Refusal where the domain has what libvirt does not send (lv9
// qemuMigrationSrcIsAllowed); there may be more, which libvirt knows.
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
