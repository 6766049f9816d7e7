package tunnel

// maxDomain bounds what is read of a domain: libvirt's own XML stays far below.
const maxDomain = 1 << 20

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
	if len(domain) > maxDomain {
		return nil, refuse(ReasonDomain, "a domain of %d bytes", len(domain))
	}
	if _, err := agreed.domain(domain); err != nil {
		return nil, err
	}
	root, err := parse(domain, ReasonDomain)
	if err != nil {
		return nil, err
	}
	devices := root.child("devices")
	if devices == nil {
		return nil, nil
	}
	return devices.disks(), nil
}

func (n *node) disks() (disks []Disk) {
	for _, d := range n.children {
		if d.name == "disk" {
			disks = append(disks, disk(d))
		}
	}
	return disks
}

// Sendable reads a domain that libvirt is to send by itself, and returns its disks. It
// is a *Refusal where the domain has what libvirt does not send (lv9
// qemuMigrationSrcIsAllowed); there may be more, which libvirt knows.
func Sendable(domain string) ([]Disk, error) {
	if len(domain) > maxDomain {
		return nil, refuse(ReasonDomain, "a domain of %d bytes", len(domain))
	}
	root, err := parse(domain, ReasonDomain)
	if err != nil {
		return nil, err
	}
	devices := root.child("devices")
	if devices == nil {
		return nil, nil
	}
	for _, kind := range []string{"hostdev", "filesystem", "shmem"} {
		if devices.child(kind) != nil {
			return nil, refuse(ReasonDomain, "an element %s", quoted("domain/devices/"+kind))
		}
	}
	return devices.disks(), nil
}

func disk(n *node) Disk {
	is := Disk{ReadOnly: n.child("readonly") != nil, Shareable: n.child("shareable") != nil}
	if s := n.child("source"); s != nil {
		is.File, is.Device = s.attr("file"), s.attr("dev")
	}
	if d := n.child("driver"); d != nil {
		is.Cache = d.attr("cache")
	}
	return is
}
