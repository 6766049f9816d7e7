package tunnel

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// q35 returns a domain as libvirt 9.0.0 of Debian 12 sends it: firmware with nvram, a chain
// of images, serial port with a log, guest agent, display. The agent adds the chain.
func q35(tb testing.TB) string {
	tb.Helper()
	b, err := os.ReadFile("testdata/q35.xml")
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// shipped returns what the flags in the manifests allow, and a network and a directory for
// logs.
func shipped() Agreement {
	return Agreement{
		Domain: "ns_vm", UUID: "622795a5-0a0a-48ee-a1f9-0d789936f8ed", Networks: []string{"onbr", "onbr.42"}, Listen: []string{"10.0.0.6"}, Processors: "0-3", NUMANodes: "0",
		Paths: []string{"/var/lib/libvirt/images", "/var/log/libvirt/qemu"}, Memory: 128 << 20, CPUs: 4,
	}
}

// before returns the domain with text before an element, instead with text in its place.
func before(tb testing.TB, element, text string) string {
	tb.Helper()
	return instead(tb, element, text+element)
}

func instead(tb testing.TB, old, with string) string {
	tb.Helper()
	text := q35(tb)
	if !strings.Contains(text, old) {
		tb.Fatalf("there is no %s", old)
	}
	return strings.Replace(text, old, with, 1)
}

func TestADomainOfLibvirtPasses(t *testing.T) {
	a := shipped()
	out, err := a.domain(q35(t))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.domain(out); err != nil || again != out {
		t.Errorf("what is passed on reads as %s, %v", again, err)
	}
}

// Given a domain as libvirt 11.3.0 of Debian 13 has it, with the firmware that it chose for
// firmware='efi'. Then it passes.
func TestADomainOfALaterLibvirtPasses(t *testing.T) {
	b, err := os.ReadFile("testdata/efi-11.3.xml")
	if err != nil {
		t.Fatal(err)
	}
	a := shipped()
	if _, err := a.domain(string(b)); err != nil {
		t.Error(err)
	}
}

// Given a domain of virt-install 4.1.0 for Windows 11, as libvirt 9.0.0 sends it, with a TPM,
// secure boot and displays without an address, when it arrives, then it passes, and its
// displays listen on the loopback.
func TestADomainOfVirtInstallPasses(t *testing.T) {
	b, err := os.ReadFile("testdata/virt-install-win11.xml")
	if err != nil {
		t.Fatal(err)
	}
	a := shipped()
	a.Networks, a.Memory = []string{"default"}, 1<<30
	out, err := a.domain(string(b))
	if err != nil || strings.Count(out, `<listen type="address" address="127.0.0.1"/>`) != 1 {
		t.Errorf("%s, %v", out, err)
	}
}

func TestWhatElseAGuestMayHave(t *testing.T) {
	const (
		nvram   = "<nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'>/var/lib/libvirt/qemu/nvram/ns_vm_VARS.fd</nvram>"
		device  = "<memballoon"
		backed  = "<source type='memfd'/>\n    <access mode='shared'/>"
		network = "<interface type='network'>\n      <mac address='52:54:00:7d:fe:16'/>\n      <source network='onbr'/>"
	)
	for name, text := range map[string]string{
		"processors on the host's":       instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static' cpuset='0'>2<"),
		"a vsock of the host":            before(t, device, "<vsock model='virtio'><cid auto='yes'/></vsock>"),
		"a node of the host's memory":    before(t, "<devices>", "<numatune><memory mode='strict' nodeset='0'/></numatune>"),
		"a processor of the host":        before(t, "<resource>", "<cputune><vcpupin vcpu='0' cpuset='0'/></cputune>"),
		"a TPM, emulated":                before(t, device, "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"),
		"a dump, and its end":            instead(t, "<on_crash>destroy", "<on_crash>coredump-destroy"),
		"block I/O of the host":          before(t, "<devices>", "<blkiotune><weight>1000</weight></blkiotune>"),
		"locked memory":                  instead(t, backed, backed+"<locked/>"),
		"a display without an address":   instead(t, "<listen type='address' address='127.0.0.1'/>", "<listen type='address'/>"),
		"a path in metadata":             before(t, "<memory unit", "<metadata><x:y xmlns:x='urn:x' z='/etc/shadow'><x:file>/etc/passwd</x:file></x:y></metadata>"),
		"a VLAN that is allowed":         instead(t, network, network+"<vlan><tag id='42'/></vlan>"),
		"a filter":                       instead(t, network, network+"<filterref filter='clean-traffic'><parameter name='IP' value='10.0.0.1'/></filterref>"),
		"a display on no port":           instead(t, "<listen type='address' address='127.0.0.1'/>", "<listen type='none'/>"),
		"an address that is allowed":     instead(t, "address='127.0.0.1'/>", "address='10.0.0.6'/>"),
		"a DIMM":                         before(t, device, "<memory model='dimm'><target><size unit='KiB'>131072</size><node>0</node></target><address type='dimm' slot='0' base='0x100000000'/></memory>"),
		"nvram below images":             instead(t, "/var/lib/libvirt/qemu/nvram/ns_vm_VARS.fd", "/var/lib/libvirt/images/vars.fd"),
		"a loader that is a ROM":         instead(t, "<loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd", "<loader type='rom'>/usr/share/seabios/bios.bin"),
		"a loader below images":          instead(t, "/usr/share/OVMF/OVMF_CODE_4M.fd", "/var/lib/libvirt/images/OVMF.fd"),
		"a kernel of libvirt's":          instead(t, nvram, "<kernel>/var/lib/libvirt/boot/vmlinuz</kernel>"),
		"memory in huge pages, shared":   instead(t, "<source type='memfd'/>", "<hugepages/>"),
		"NUMA cells":                     instead(t, "<model fallback='forbid'>qemu64</model>", "<numa><cell id='0' cpus='0-1' memory='65536' unit='KiB' memAccess='shared'/></numa>"),
		"as many processors as agreed":   instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static' current='1'>4<"),
		"as much memory as agreed":       instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'>131072<"),
		"a socket that QEMU makes":       instead(t, "<target type='virtio' name='org.qemu.guest_agent.0'/>", "<source mode='bind' path='/var/lib/libvirt/images/agent.sock'/><target type='virtio' name='org.qemu.guest_agent.0'/>"),
		"a bridge":                       instead(t, "<interface type='network'>", "<interface type='bridge'><source bridge='onbr'/></interface><interface type='network'>"),
		"a drive without a medium":       instead(t, "<target dev='sdd' bus='sata'/>", "<source startupPolicy='optional'/><target dev='sdd' bus='sata'/>"),
		"a time zone":                    instead(t, "<clock offset='utc'>", "<clock offset='timezone' timezone='America/Argentina/Buenos_Aires'>"),
		"a clock of its own":             instead(t, "<clock offset='utc'>", "<clock offset='variable' adjustment='-3600' basis='utc'>"),
		"a raw disk whose end is absent": instead(t, "<source file='/var/lib/libvirt/images/raw.img'/>\n      <backingStore/>", "<source file='/var/lib/libvirt/images/raw.img'/>"),
		"a disk of a format that is":     instead(t, "<driver name='qemu' type='raw'/>\n      <source file='/var/lib/libvirt/images/raw.img'/>", "<source file='/var/lib/libvirt/images/raw.img'/>"),
	} {
		a := shipped()
		out, err := a.domain(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again, err := a.domain(out); err != nil || again != out {
			t.Errorf("%s: what is passed on reads as %s, %v", name, again, err)
		}
	}
}

// The agent writes what libvirt would choose by itself: a raw image has no other below it.
func TestTheEndOfARawDiskIsWritten(t *testing.T) {
	a := shipped()
	const disk = "<driver name='qemu' type='raw'/>\n      <source file='/var/lib/libvirt/images/raw.img'/>\n      <backingStore/>"
	for _, with := range []string{
		"<source file='/var/lib/libvirt/images/raw.img'/>", "<driver name='qemu'/><source file='/var/lib/libvirt/images/raw.img'/>",
		"<source file='/var/lib/libvirt/images/raw.img'/><backingStore/>",
	} {
		out, err := a.domain(instead(t, disk, with))
		if err != nil {
			t.Fatal(err)
		}
		_, out, _ = strings.Cut(out, "raw.img")
		out, _, _ = strings.Cut(out, "</disk>")
		if strings.Count(out, "<backingStore/>") != 1 || !strings.Contains(out, ` type="raw"/>`) && !strings.Contains(with, "name=") {
			t.Errorf("%s became %s", with, out)
		}
	}
}

func TestADomainThatAsksForTooMuchIsRefused(t *testing.T) {
	const (
		firmware = "/usr/share/OVMF/OVMF_CODE.fd"
		images   = "/var/lib/libvirt/images/"
		disk     = "<disk type='file' device='disk'>\n      <driver name='qemu' type='qcow2' cache='none' discard='unmap'/>"
		loader   = "<loader readonly='yes' type='pflash'>"
		serial   = "<serial type='pty'>\n      <log file='/var/log/libvirt/qemu/ns_vm-serial.log' append='on'/>"
		end      = "<backingStore/>\n        </backingStore>"
		format   = "<format type='qcow2'/>"
		network  = "<interface type='network'>\n      <mac address='52:54:00:7d:fe:16'/>\n      <source network='onbr'/>"
		backed   = "<source type='memfd'/>\n    <access mode='shared'/>"
		agent    = "<channel type='unix'>\n      <target type='virtio' name='org.qemu.guest_agent.0'/>"
		clock    = "<clock offset='utc'>"
		device   = "<memballoon"
	)
	raw := func(attr, at string) string {
		return before(t, device, fmt.Sprintf("<disk type='file' device='disk'><driver type='raw'/><source %s='%s'/><target dev='vdz' bus='virtio'/></disk>", attr, at))
	}
	for name, c := range map[string]struct{ reason, text string }{
		// Firmware and kernels are only read.
		"a disk on firmware":              {ReasonPath, raw("file", firmware)},
		"a disk on a kernel":              {ReasonPath, raw("file", "/var/lib/libvirt/boot/vmlinuz")},
		"a disk on another's nvram":       {ReasonPath, raw("file", "/var/lib/libvirt/qemu/nvram/other_VARS.fd")},
		"a disk on its own nvram":         {ReasonPath, raw("file", "/var/lib/libvirt/qemu/nvram/ns_vm_VARS.fd")},
		"a backing file on firmware":      {ReasonPath, instead(t, images+"base.raw", firmware)},
		"a log on firmware":               {ReasonPath, instead(t, "/var/log/libvirt/qemu/ns_vm-serial.log", firmware)},
		"a log elsewhere":                 {ReasonPath, instead(t, "/var/log/libvirt/qemu/ns_vm-serial.log", "/etc/cron.d/x")},
		"a serial port on firmware":       {ReasonPath, instead(t, serial, "<serial type='file'><source path='"+firmware+"'/>")},
		"a console on firmware":           {ReasonPath, instead(t, "<console type='pty'>", "<console type='file'><source path='"+firmware+"'/>")},
		"nvram on firmware":               {ReasonPath, instead(t, "<nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'>/var/lib/libvirt/qemu/nvram/ns_vm_VARS.fd", "<nvram template='"+images+"x'>"+firmware)},
		"nvram of another":                {ReasonPath, instead(t, "nvram/ns_vm_VARS.fd", "nvram/other_VARS.fd")},
		"nvram without a path":            {ReasonPath, instead(t, ">/var/lib/libvirt/qemu/nvram/ns_vm_VARS.fd<", "><")},
		"a template of the host":          {ReasonPath, instead(t, "template='/usr/share/OVMF/OVMF_VARS_4M.fd'", "template='/etc/shadow'")},
		"a loader that is written":        {ReasonPath, instead(t, loader, "<loader type='pflash'>")},
		"a loader of no type, written":    {ReasonPath, instead(t, loader, "<loader>")},
		"a loader that says so":           {ReasonDomain, instead(t, loader, "<loader readonly='no' type='pflash'>")},
		"a socket on firmware":            {ReasonPath, instead(t, agent, "<channel type='unix'><source mode='bind' path='"+firmware+"'/><target type='virtio' name='a'/>")},
		"a kernel that is a device":       {ReasonPath, instead(t, "<loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd", "<loader readonly='yes' type='pflash'>/dev/mem")},
		"a disk on a device of the host":  {ReasonPath, before(t, device, "<disk type='block' device='disk'><driver type='raw'/><source dev='/dev/sda'/><target dev='vdz'/></disk>")},
		"a directory with a name like it": {ReasonPath, raw("file", "/var/lib/libvirt/images2/x")},
		"the directory above":             {ReasonPath, raw("file", "/var/lib/libvirt")},
		"a path with dots":                {ReasonPath, raw("file", images+"../boot/x")},
		"a path with a dot":               {ReasonPath, raw("file", images+"./x")},
		"a path with a line":              {ReasonPath, raw("file", images+"x&#10;y")},
		"a path of a protocol":            {ReasonPath, raw("file", "nbd:unix:/run/x")},
		"a path of JSON":                  {ReasonPath, raw("file", "json:{}")},
		"a path that is too long":         {ReasonPath, raw("file", images+strings.Repeat("x", 5000))},
		"a relative path":                 {ReasonPath, raw("file", "var/lib/libvirt/images/x")},
		// A chain has a format at each level, and an end.
		"a chain without an end":       {ReasonDomain, instead(t, "<format type='raw'/>\n          <source file='"+images+"base.raw'/>\n          <backingStore/>", "<format type='qcow2'/><source file='"+images+"base.raw'/>")},
		"a disk whose chain is absent": {ReasonDomain, instead(t, "<source file='"+images+"plain.qcow2'/>\n      <backingStore/>", "<source file='"+images+"plain.qcow2'/>")},
		"a level without a format":     {ReasonDomain, instead(t, format, "")},
		"a level with an empty format": {ReasonDomain, instead(t, format, "<format/>")},
		"a level with two formats":     {ReasonDomain, instead(t, format, format+"<format type='raw'/>")},
		"a level of another format":    {ReasonDomain, instead(t, format, "<format type='vmdk'/>")},
		"a level without a file":       {ReasonDomain, instead(t, "<source file='"+images+"mid.qcow2'/>", "")},
		"a level without a type":       {ReasonDomain, instead(t, "<backingStore type='file'>", "<backingStore>")},
		"two chains of a disk":         {ReasonDomain, instead(t, end, end+"<backingStore/>")},
		"a chain below a raw disk":     {ReasonDomain, instead(t, "<driver name='qemu' type='qcow2' cache='none' discard='unmap'/>", "<driver name='qemu' type='raw'/>")},
		"a disk of another format":     {ReasonDomain, instead(t, "type='qcow2' cache='none'", "type='vmdk' cache='none'")},
		"a chain without a disk":       {ReasonDomain, instead(t, "<source file='"+images+"top.qcow2'/>", "")},
		"a file of a block disk":       {ReasonDomain, instead(t, disk, strings.Replace(disk, "'file'", "'block'", 1))},
		"a device of a file disk":      {ReasonDomain, raw("dev", images+"x")},
		"a mirror":                     {ReasonDomain, instead(t, disk, disk+"<mirror type='file' file='"+images+"m'/>")},
		"a network behind the chain":   {ReasonDomain, instead(t, "<backingStore type='file'>", "<backingStore type='network'>")},
		"a data file":                  {ReasonDomain, instead(t, "<source file='"+images+"top.qcow2'/>", "<source file='"+images+"top.qcow2'><dataStore type='file'/></source>")},
		"a slice of a file":            {ReasonDomain, instead(t, "<source file='"+images+"top.qcow2'/>", "<source file='"+images+"top.qcow2'><slices/></source>")},
		"a key for a disk":             {ReasonDomain, instead(t, disk, disk+"<encryption format='luks'/>")},
		"a label of a disk":            {ReasonDomain, instead(t, "<source file='"+images+"top.qcow2'/>", "<source file='"+images+"top.qcow2'><seclabel model='dac' relabel='no'/></source>")},
		// Each interface names its network.
		"the host's own network":            {ReasonPath, instead(t, network, "<interface type='user'>")},
		"the host's, beside a network":      {ReasonPath, instead(t, network, "<interface type='user'><source network='onbr'/>")},
		"an interface of no type":           {ReasonPath, instead(t, network, "<interface><source network='onbr'/>")},
		"an interface without a source":     {ReasonPath, instead(t, "<source network='onbr'/>", "")},
		"an interface with an empty source": {ReasonPath, instead(t, "<source network='onbr'/>", "<source/>")},
		"a bridge by a network's name":      {ReasonPath, instead(t, "<interface type='network'>", "<interface type='bridge'>")},
		"another network":                   {ReasonPath, instead(t, "network='onbr'", "network='default'")},
		"another bridge beside it":          {ReasonPath, instead(t, "network='onbr'", "network='onbr' bridge='br0'")},
		"another group of ports":            {ReasonPath, instead(t, "network='onbr'", "network='onbr' portgroup='admin'")},
		"a tap of another name":             {ReasonDomain, instead(t, network, network+"<target dev='a/../b'/>")},
		"a tap of a dot":                    {ReasonDomain, instead(t, network, network+"<target dev='..'/>")},
		"a tap of a long name":              {ReasonDomain, instead(t, network, network+"<target dev='abcdefghijklmnop'/>")},
		"a tap of others":                   {ReasonDomain, instead(t, network, network+"<target dev='tap0' managed='no'/>")},
		"a backend of an interface":         {ReasonDomain, instead(t, network, network+"<backend tap='/dev/x' vhost='/dev/y'/>")},
		"a device as an interface's model":  {ReasonDomain, instead(t, network+"\n      <model type='virtio'/>", network+"<model type='vfio-pci'/>")},
		"a filter by a path":                {ReasonDomain, instead(t, network, network+"<filterref filter='/etc/x'/>")},
		"a VLAN of an allowed network":      {ReasonPath, instead(t, network, network+"<vlan><tag id='7'/></vlan>")},
		"a trunk of an allowed network":     {ReasonDomain, instead(t, network, network+"<vlan trunk='yes'><tag id='42'/></vlan>")},
		"a port of a switch":                {ReasonDomain, instead(t, network, network+"<virtualport type='802.1Qbh'/>")},
		"an address on the host":            {ReasonDomain, instead(t, network, network+"<ip address='10.0.0.1'/>")},
		"a passt of an interface":           {ReasonDomain, instead(t, network, network+"<portForward proto='tcp'/>")},
		// Numbers have bounds.
		"memory":                           {ReasonDomain, instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'>131073<")},
		"memory in another unit":           {ReasonDomain, instead(t, "<memory unit='KiB'>65536<", "<memory unit='TiB'>64<")},
		"memory at once, 64 TiB":           {ReasonDomain, instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'>68719476736<")},
		"memory of a second element":       {ReasonDomain, before(t, "<currentMemory", "<memory unit='KiB'>1</memory>")},
		"memory in octal":                  {ReasonDomain, instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'>0777777777777<")},
		"memory with a space":              {ReasonDomain, instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'> 65536<")},
		"memory below zero":                {ReasonDomain, instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'>-1<")},
		"memory that overflows":            {ReasonDomain, instead(t, "<memory unit='KiB'>65536<", "<memory unit='KiB'>18446744073709551616<")},
		"memory of now":                    {ReasonDomain, instead(t, "<currentMemory unit='KiB'>65536<", "<currentMemory unit='KiB'>131073<")},
		"memory to be plugged in":          {ReasonDomain, before(t, "<memory ", "<maxMemory slots='257' unit='KiB'>65536</maxMemory>")},
		"memory to be plugged in, without": {ReasonDomain, before(t, "<memory ", "<maxMemory slots='1' unit='KiB'>17179869185</maxMemory>")},
		"memory of one cell":               {ReasonDomain, instead(t, "<model fallback='forbid'>qemu64</model>", "<numa><cell id='0' memory='131073' unit='KiB'/></numa>")},
		"memory of all cells":              {ReasonDomain, instead(t, "<model fallback='forbid'>qemu64</model>", "<numa><cell id='0' memory='131072'/><cell id='1' memory='1'/></numa>")},
		"memory by threads":                {ReasonDomain, instead(t, backed, backed+"<allocation mode='immediate' threads='65'/>")},
		"a page of another unit":           {ReasonDomain, instead(t, backed, "<hugepages><page size='1' unit='GiB'/></hugepages>")},
		"processors":                       {ReasonDomain, instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static'>5<")},
		"no processors":                    {ReasonDomain, instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static'>0<")},
		"processors of now":                {ReasonDomain, instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static' current='5'>2<")},
		"I/O threads":                      {ReasonDomain, instead(t, "<iothreads>2<", "<iothreads>4294967295<")},
		"I/O threads, one by one":          {ReasonDomain, instead(t, "<iothreads>2</iothreads>", "<iothreadids>"+strings.Repeat("<iothread id='1'/>", 65)+"</iothreadids>")},
		"an I/O thread of a number":        {ReasonDomain, instead(t, "<iothreads>2</iothreads>", "<iothreadids><iothread id='4294967295'/></iothreadids>")},
		"a PCI controller of an index":     {ReasonDomain, instead(t, "<controller type='pci' index='11'", "<controller type='pci' index='2147483647'")},
		"a SCSI controller of an index":    {ReasonDomain, instead(t, "<controller type='scsi' index='0'", "<controller type='scsi' index='32'")},
		"a controller of no number":        {ReasonDomain, instead(t, "<controller type='scsi' index='0'", "<controller type='scsi' index='-1'")},
		"a controller by an address":       {ReasonDomain, instead(t, "<address type='drive' controller='0'", "<address type='drive' controller='32'")},
		"a bus by an address":              {ReasonDomain, instead(t, "bus='0x0a'", "bus='0x100'")},
		"queues of a controller":           {ReasonDomain, before(t, "<controller type='usb'", "<controller type='scsi' index='1'><driver queues='257'/></controller>")},
		"queues of a disk":                 {ReasonDomain, instead(t, "cache='none' discard", "queues='257' discard")},
		"queues of an interface":           {ReasonDomain, instead(t, network, network+"<driver queues='65'/>")},
		"ports of a controller":            {ReasonDomain, instead(t, "<controller type='virtio-serial' index='0'", "<controller type='virtio-serial' index='0' ports='4294967295'")},
		"memory of a display":              {ReasonDomain, instead(t, "<model type='virtio' heads='1'", "<model type='qxl' ram='4194304' heads='1'")},
		"heads of a display":               {ReasonDomain, instead(t, "heads='1'", "heads='17'")},
		"many displays":                    {ReasonDomain, before(t, device, strings.Repeat("<video><model type='qxl'/></video>", 8))},
		"many interfaces":                  {ReasonDomain, before(t, device, strings.Repeat("<interface type='network'><source network='onbr'/></interface>", 64))},
		"many devices":                     {ReasonDomain, before(t, device, strings.Repeat("<hub type='usb'/>", 512))},
		"a port of the host's":             {ReasonDomain, instead(t, "autoport='yes' listen", "port='22' listen")},
		"a port with a number too large":   {ReasonDomain, instead(t, "autoport='yes' listen", "port='65536' listen")},
		"shares of the processors":         {ReasonDomain, before(t, "<resource>", "<cputune><shares>262145</shares></cputune>")},
		"a scheduler of real time":         {ReasonDomain, before(t, "<resource>", "<cputune><vcpusched vcpus='0' scheduler='fifo' priority='99'/></cputune>")},
		// The rest.
		"a level of another type":          {ReasonDomain, instead(t, "<backingStore type='file'>", "<backingStore type='block'>")},
		"a socket that is connected to":    {ReasonPath, instead(t, agent, "<channel type='unix'><source path='"+images+"x'/><target type='virtio' name='a'/>")},
		"a socket that says so":            {ReasonDomain, instead(t, agent, "<channel type='unix'><source mode='connect' path='"+images+"x'/><target type='virtio' name='a'/>")},
		"a terminal with a path":           {ReasonPath, instead(t, serial, "<serial type='pty'><source path='"+images+"x'/>")},
		"a channel of a terminal's path":   {ReasonPath, instead(t, agent, "<channel type='pty'><source mode='bind' path='"+images+"x'/><target type='virtio' name='a'/>")},
		"a dump of its memory":             {ReasonDomain, instead(t, "<on_crash>destroy", "<on_crash>coredump-restart")},
		"a dump by the watchdog":           {ReasonDomain, instead(t, "action='reset'", "action='dump'")},
		"a file as a time zone":            {ReasonDomain, instead(t, clock, "<clock offset='timezone' timezone=':/proc/self/mem'>")},
		"a path as a time zone":            {ReasonDomain, instead(t, clock, "<clock offset='timezone' timezone='/etc/shadow'>")},
		"a way up as a time zone":          {ReasonDomain, instead(t, clock, "<clock offset='timezone' timezone='Europe/../../../etc/shadow'>")},
		"rules as a time zone":             {ReasonDomain, instead(t, clock, "<clock offset='timezone' timezone='A1B,M3.2.0'>")},
		"a clock of words":                 {ReasonDomain, instead(t, clock, "<clock offset='variable' adjustment='now'>")},
		"shared memory without a source":   {ReasonDomain, instead(t, backed, "<access mode='shared'/>")},
		"private memory without a source":  {ReasonDomain, instead(t, backed, "<access mode='private'/>")},
		"shared memory of QEMU's own":      {ReasonDomain, instead(t, backed, "<source type='anonymous'/><access mode='shared'/>")},
		"shared memory of one cell":        {ReasonDomain, strings.Replace(instead(t, backed, ""), "<model fallback='forbid'>qemu64</model>", "<numa><cell id='0' memory='65536' memAccess='shared'/></numa>", 1)},
		"shared memory without backing":    {ReasonDomain, strings.Replace(instead(t, "<memoryBacking>\n    "+backed+"\n  </memoryBacking>", ""), "<model fallback='forbid'>qemu64</model>", "<numa><cell id='0' memory='65536' memAccess='private'/></numa>", 1)},
		"an option as a word":              {ReasonDomain, instead(t, "machine='pc-q35-7.2'", "machine='-x'")},
		"an option behind a word":          {ReasonDomain, instead(t, "machine='pc-q35-7.2'", "machine='pc,accel=kvm'")},
		"a variable of QEMU's environment": {ReasonDomain, instead(t, "</devices>", "</devices><commandline><env name='LD_PRELOAD' value='/x'/></commandline>")},
		"a device by QEMU's own words":     {ReasonDomain, instead(t, "</devices>", "</devices><override><device alias='x'/></override>")},
		"a firmware's setting from a file": {ReasonDomain, before(t, "<os>", "<sysinfo type='fwcfg'><entry name='opt/x' file='/etc/shadow'/></sysinfo>")},
		"an initial command":               {ReasonDomain, instead(t, "<boot dev='hd'/>", "<init>/bin/sh</init>")},
		"a random number's socket":         {ReasonDomain, before(t, device, "<rng model='virtio'><backend model='egd' type='unix'><source mode='connect' path='/x'/></backend></rng>")},
		"a random number's file":           {ReasonDomain, instead(t, ">/dev/urandom<", ">/dev/sda<")},
		"a display's socket":               {ReasonDomain, instead(t, "<listen type='address' address='127.0.0.1'/>", "<listen type='socket' socket='"+images+"x'/>")},
		"a display's network":              {ReasonDomain, instead(t, "<listen type='address' address='127.0.0.1'/>", "<listen type='network' network='onbr'/>")},
		"a display on the host's card":     {ReasonDomain, instead(t, "<listen type='address' address='127.0.0.1'/>", "<gl enable='yes' rendernode='/dev/dri/renderD128'/>")},
		"an input of the host":             {ReasonDomain, before(t, device, "<input type='evdev'><source dev='/dev/input/event0'/></input>")},
		"a sound to the host":              {ReasonDomain, before(t, device, "<audio id='1' type='pulseaudio' serverName='x'/>")},
		"a sound to a file":                {ReasonDomain, before(t, device, "<audio id='1' type='file' path='/x'/>")},
		"a card of the host":               {ReasonDomain, before(t, device, "<smartcard mode='host'/>")},
		"a redirected device":              {ReasonDomain, before(t, device, "<redirdev bus='usb' type='tcp'/>")},
		"a processor that is not there":    {ReasonDomain, before(t, "<resource>", "<cputune><vcpupin vcpu='0' cpuset='0-4'/></cputune>")},
		"processors that are not there":    {ReasonDomain, instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static' cpuset='^1,9'>2<")},
		"a set of processors of words":     {ReasonDomain, instead(t, "<vcpu placement='static'>2<", "<vcpu placement='static' cpuset='3-1'>2<")},
		"a NUMA node that is not there":    {ReasonDomain, before(t, "<devices>", "<numatune><memory mode='strict' nodeset='1'/></numatune>")},
		"a secret by a path":               {ReasonDomain, before(t, device, "<tpm model='tpm-crb'><backend type='emulator' version='2.0'><encryption secret='/etc/shadow'/></backend></tpm>")},
		"a TPM's state of another":         {ReasonDomain, before(t, device, "<tpm model='tpm-crb'><backend type='emulator' version='2.0'><source type='dir' path='/etc'/></backend></tpm>")},
		"a TPM of another process":         {ReasonDomain, before(t, device, "<tpm model='tpm-crb'><backend type='external'><source type='unix' path='/run/x'/></backend></tpm>")},
		"metadata of 65 KiB":               {ReasonDomain, before(t, "<memory unit", "<metadata><x:y xmlns:x='urn:x'>"+strings.Repeat("x", 65<<10)+"</x:y></metadata>")},
		"memory devices of too much":       {ReasonDomain, before(t, device, strings.Repeat("<memory model='dimm'><target><size unit='KiB'>131072</size></target></memory>", 2))},
		"the host's own cid":               {ReasonDomain, before(t, device, "<vsock model='virtio'><cid auto='no' address='2'/></vsock>")},
		"another host's display":           {ReasonPath, instead(t, "address='127.0.0.1'/>", "address='10.0.0.7'/>")},
		"a memory device":                  {ReasonDomain, before(t, device, "<memory model='nvdimm'><source><path>/x</path></source></memory>")},
		"a lease":                          {ReasonDomain, before(t, device, "<lease><lockspace>x</lockspace></lease>")},
		"a crypto device of the host":      {ReasonDomain, before(t, device, "<crypto model='virtio' type='qemu'><backend model='builtin'/></crypto>")},
		"a launch secret":                  {ReasonDomain, before(t, "<devices>", "<launchSecurity type='sev'/>")},
		"a key wrap":                       {ReasonDomain, before(t, "<devices>", "<keywrap/>")},
		"an id map":                        {ReasonDomain, before(t, "<devices>", "<idmap/>")},
		"a label by the source":            {ReasonDomain, before(t, "<devices>", "<seclabel type='dynamic' model='dac' relabel='yes'><baselabel>root</baselabel></seclabel>")},
	} {
		t.Run(name, func(t *testing.T) {
			a := shipped()
			_, err := a.domain(c.text)
			if err == nil {
				err = errNothing
			}
			if !refusedFor(err, c.reason) {
				t.Fatalf("%v; want a refusal for %s", err, c.reason)
			}
			if strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 400 {
				t.Errorf("not one short line: %q", err)
			}
		})
	}
}
