package tunnel

import "slices"

// Bounds of the number of a domain's devices.
const (
	maxDevices    = 512
	maxInterfaces = 64
	maxVideos     = 8
	maxIOThreads  = 64
	// maxControllers is for one type other than pci.
	maxControllers = 32
)

const (
	diskElement = "domain/devices/disk"
	loopback    = "127.0.0.1"
)

// conditions returns the checks of more than one value, by element.
func conditions() map[string]func(*checker, *node) error {
	return map[string]func(*checker, *node) error{
		"domain": (*checker).cellAccess, "domain/memoryBacking": (*checker).access, "domain/cpu": (*checker).cells, "domain/os/loader": (*checker).loader,
		"domain/iothreadids": (*checker).ioThreads, "domain/devices": (*checker).count, diskElement: (*checker).disk,
		"domain/devices/controller": (*checker).controller, "domain/devices/interface": (*checker).network,
		"domain/devices/serial": (*checker).serial, "domain/devices/console": (*checker).serial, "domain/devices/channel": (*checker).channel,
		"domain/devices/graphics": (*checker).graphics, "domain/devices/graphics/listen": (*checker).listen,
	}
}

func (c *checker) access(n *node) error {
	if n.child("access") != nil && !n.backed() {
		return refuse(c.reason, "memory with an access mode, and neither memfd nor huge pages: libvirt would make a file of it")
	}
	return nil
}

// loader requires a read-only loader, except of type rom.
func (c *checker) loader(n *node) error {
	if n.attr("readonly") != "yes" && n.attr("type") != "rom" {
		return refuse(ReasonPath, "a loader without readonly='yes'")
	}
	return nil
}

func (c *checker) ioThreads(n *node) error {
	if len(n.children) > maxIOThreads {
		return refuse(c.reason, "%d I/O threads", len(n.children))
	}
	return nil
}

// controller bounds the index: libvirt adds controllers for the lower ones.
func (c *checker) controller(n *node) error {
	if n.attr("type") != "pci" && n.attr("index") != "" && !inRange(n.attr("index"), 0, maxControllers-1) {
		return refuse(c.reason, "index %s of a controller", quoted(n.attr("index")))
	}
	return nil
}

// network checks that an interface is of type bridge or network and that its source names
// one, or that QEMU's own network is allowed; and its VLANs.
func (c *checker) network(n *node) error {
	s, kind := n.child("source"), n.attr("type")
	if kind == "user" && s == nil {
		return c.value("network", kind, "domain/devices/interface type")
	}
	if s == nil || kind != "bridge" && kind != "network" || s.attr(kind) == "" {
		return refuse(ReasonPath, "an interface that does not say which bridge or network it is connected to")
	}
	vlan := n.child("vlan")
	if vlan == nil {
		return nil
	}
	for _, tag := range vlan.children {
		if err := c.value("network", s.attr(kind)+"."+tag.attr("id"), "domain/devices/interface/vlan"); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) serial(n *node) error {
	if s := n.child("source"); s != nil && s.attr("path") != "" && n.attr("type") != "file" {
		return refuse(ReasonPath, "%s with a path, which is no file", quoted(n.name))
	}
	return nil
}

func (c *checker) channel(n *node) error {
	if s := n.child("source"); s != nil && (n.attr("type") != "unix" || s.attr("mode") != "bind") {
		return refuse(ReasonPath, "a channel that connects to something, and does not bind a socket")
	}
	return nil
}

// graphics has a display that states no address listen on the loopback: libvirt's
// configuration would choose one.
func (c *checker) graphics(n *node) error {
	if n.attr("listen") == "" && n.child("listen") == nil {
		n.attrs = append(n.attrs, [2]string{"listen", loopback})
	}
	return nil
}

func (c *checker) listen(n *node) error {
	if n.attr("type") == "address" && n.attr("address") == "" {
		n.attrs = slices.DeleteFunc(n.attrs, func(a [2]string) bool { return a[0] == "address" })
		n.attrs = append(n.attrs, [2]string{"address", loopback})
	}
	return nil
}

// backed reports whether memory is of memfd or huge pages, and so no file in libvirt's
// directory.
func (n *node) backed() bool {
	s := n.child("source")
	return n.child("hugepages") != nil || s != nil && s.attr("type") == "memfd"
}

// cells bounds the memory of all NUMA cells: libvirt uses the sum as the domain's.
func (c *checker) cells(cpu *node) error {
	numa := cpu.child("numa")
	if numa == nil {
		return nil
	}
	var sum int64
	for _, cell := range numa.children {
		n, _ := numeric(cell.attr("memory")) // it was checked
		sum += n
		if sum > c.agreed.memory() {
			return refuse(c.reason, "NUMA cells with more memory than this node takes (%d KiB)", c.agreed.memory())
		}
	}
	return nil
}

// cellAccess checks the access modes of NUMA cells, which libvirt would keep in a file.
func (c *checker) cellAccess(n *node) error {
	backing := n.child("memoryBacking")
	cpu := n.child("cpu")
	if cpu == nil || cpu.child("numa") == nil || backing != nil && backing.backed() {
		return nil
	}
	for _, cell := range cpu.child("numa").children {
		if cell.attr("memAccess") != "" {
			return refuse(c.reason, "a NUMA cell with an access mode, and neither memfd nor huge pages: libvirt would make a file of it")
		}
	}
	return nil
}

// count bounds the number of devices: each costs the host memory, threads or descriptors.
func (c *checker) count(devices *node) error {
	of := map[string]int{}
	var plugged int64
	for _, d := range devices.children {
		of[d.name]++
		if target := d.child("target"); d.name == "memory" && target != nil && target.child("size") != nil {
			n, _ := numeric(target.child("size").text) // it was checked
			plugged += n
		}
	}
	if plugged > c.agreed.memory() {
		return refuse(c.reason, "%d KiB of memory devices: more than this node takes (%d KiB)", plugged, c.agreed.memory())
	}
	for name, most := range map[string]int{"interface": maxInterfaces, "video": maxVideos} {
		if of[name] > most {
			return refuse(c.reason, "%d devices %s; %d are allowed", of[name], quoted(name), most)
		}
	}
	if len(devices.children) > maxDevices {
		return refuse(c.reason, "%d devices; %d are allowed", len(devices.children), maxDevices)
	}
	return nil
}

// disk checks that the format of each level of a disk is known and that the last level ends
// the chain. Otherwise libvirt would follow what the image says, to any path of this host.
func (c *checker) disk(n *node) error {
	medium, err := c.medium(n)
	if err != nil {
		return err
	}
	if !medium {
		if n.child("backingStore") != nil {
			return refuse(c.reason, "%s without a medium has a backing store", quoted(diskElement))
		}
		return nil
	}
	d := n.child("driver")
	if d == nil {
		d = &node{name: "driver"}
		n.children = append(n.children, d)
	}
	if d.attr("type") == "" {
		d.attrs = append(d.attrs, [2]string{"type", "raw"}) // as libvirt reads it
	}
	return c.chain(n, d.attr("type"))
}

// medium reports whether a disk or a level of its chain has a file or device. It must match
// the level's type.
func (c *checker) medium(n *node) (bool, error) {
	s := n.child("source")
	if s == nil {
		return false, nil
	}
	file, dev, kind := s.attr("file"), s.attr("dev"), n.attr("type")
	if file != "" && kind != "file" || dev != "" && kind != "block" {
		return false, refuse(c.reason, "%s of type %s has a source of another", quoted(diskElement), quoted(kind))
	}
	return file != "" || dev != "", nil
}

// chain checks a level and those below it. It writes that a raw image has none below it.
func (c *checker) chain(level *node, format string) error {
	store := level.child("backingStore")
	switch {
	case format == "":
		return refuse(c.reason, "%s does not state the format of each level", quoted(diskElement))
	case store == nil && format == "raw":
		level.children = append(level.children, &node{name: "backingStore"})
		return nil
	case store == nil:
		return refuse(c.reason, "%s does not end its chain: no backingStore below %s, whose header would be followed", quoted(diskElement), quoted(level.file()))
	}
	if format == "qcow2" {
		c.qcow2(level.file())
	}
	if len(store.attrs) == 0 && len(store.children) == 0 {
		return nil
	}
	if format == "raw" {
		return refuse(c.reason, "%s has a backing store of a raw image", quoted(diskElement))
	}
	medium, err := c.medium(store)
	if err != nil {
		return err
	}
	if !medium {
		return refuse(c.reason, "%s has a backing store without a file or device", quoted(diskElement))
	}
	below := ""
	if f := store.child("format"); f != nil {
		below = f.attr("type")
	}
	return c.chain(store, below)
}

// file returns the path of a disk or of a level of its chain.
func (n *node) file() string {
	s := n.child("source")
	if s == nil {
		return ""
	}
	if file := s.attr("file"); file != "" {
		return file
	}
	return s.attr("dev")
}

// qcow2 notes that an image has that format.
func (c *checker) qcow2(name string) {
	for i := range c.paths {
		if c.paths[i].name == name && c.paths[i].use == useDisk {
			c.paths[i].qcow2 = true
		}
	}
}
