package node

import (
	"bytes"
	"crypto/rand"
	"encoding/xml"
	"fmt"
	"strings"
	"text/template"
)

// Spec describes a guest to start. The zero value is a polite guest.
type Spec struct {
	// Namespace and Name make the domain's name <namespace>_<name>. An empty Namespace
	// means "vmgrace-test". An empty Name means a unique name.
	Namespace, Name string
	// UUID is that of the domain. "" means a random one.
	UUID string
	// Behaviour is appended to the guest's kernel command line, see test/guest/init:
	// "deaf", "slow=3 presses=2", "boot=5", "agent=hung". "" means polite.
	Behaviour string
	// Firmware is a domain without an operating system. Its firmware starts a program that
	// halts the processor (see [HaltImage]). The guest is deaf, starts fast and causes no
	// load.
	Firmware bool
	// NoShutdown makes a QEMU in its launcher stay when the guest is off.
	NoShutdown bool
	// Unbootable is a firmware guest that has nothing to start. Its firmware keeps looking
	// for something, so its processor runs all the time.
	Unbootable bool
	// Panics makes a Firmware guest panic as soon as it runs, and keeps its process.
	Panics bool
	// GuestAgent adds the channel of the QEMU guest agent. A Behaviour with agent= needs
	// it.
	GuestAgent bool
	// Grace is the text of <deletionGracePeriodSeconds> in the KubeVirt metadata. "" means
	// no metadata.
	Grace string
	// OnPoweroff is the domain's <on_poweroff>. "" means destroy.
	OnPoweroff string
	// Disk is a block device of the host, "" means none. The host does not cache it, so two
	// hosts may have it.
	Disk string
	// Image is a qcow2 image that the guest only reads. "" means none.
	Image string
	// CPUFeature is a feature that the domain's CPU must have. "" means any CPU.
	CPUFeature string
	// Serial is the file of the console of a QEMU in its launcher. "" means one of its node's.
	Serial string
	// Persistent makes the domain a defined one. Otherwise it is transient, as KubeVirt's
	// domains are.
	Persistent bool
}

// KernelArgs make the kernel boot as fast as was measured under emulation: 2 s instead of
// 2.5 s. On a busy machine the emulated timer is late. The kernel then takes it for broken
// and panics, unless no_timer_check tells it not to check.
const KernelArgs = "console=ttyS0 quiet nokaslr mitigations=off lsm=none init_on_alloc=0 cryptomgr.notests no_timer_check "

const domainXML = `<domain type='qemu'>
  <name>{{xml .Domain}}</name>
  <uuid>{{xml .UUID}}</uuid>
  <memory unit='MiB'>{{if .Firmware}}16{{else}}128{{end}}</memory>
  <vcpu>1</vcpu>
{{- if .Grace}}
  <metadata>
    <kubevirt:kubevirt xmlns:kubevirt='http://kubevirt.io'>
      <kubevirt:graceperiod>
        <kubevirt:deletionGracePeriodSeconds>{{xml .Grace}}</kubevirt:deletionGracePeriodSeconds>
      </kubevirt:graceperiod>
    </kubevirt:kubevirt>
  </metadata>
{{- end}}
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
{{- if .Kernel}}
    <kernel>{{xml .Kernel}}</kernel>
{{- end}}
{{- if .Initrd}}
    <initrd>{{xml .Initrd}}</initrd>
    <cmdline>{{xml .Cmdline}}</cmdline>
{{- end}}
  </os>
  <features><acpi/></features>
{{- if .CPUFeature}}
  <cpu mode='custom' match='exact' check='full'>
    <model fallback='forbid'>qemu64</model>
    <feature policy='require' name='hypervisor'/>
    <feature policy='require' name='lahf_lm'/>
    <feature policy='require' name='{{xml .CPUFeature}}'/>
  </cpu>
{{- end}}
  <pm><suspend-to-mem enabled='yes'/></pm>
{{- if .Panics}}
  <on_crash>preserve</on_crash>
{{- end}}
{{- if .OnPoweroff}}
  <on_poweroff>{{xml .OnPoweroff}}</on_poweroff>
{{- end}}
  <devices>
    <serial type='file'><source path='{{xml .Serial}}' append='on'/></serial>
{{- if .Disk}}
    <disk type='block' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <source dev='{{xml .Disk}}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
{{- end}}
{{- if .Image}}
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='{{xml .Image}}'/>
      <target dev='vdb' bus='virtio'/>
      <readonly/>
    </disk>
{{- end}}
{{- if .Panics}}
    <panic model='isa'/>
{{- end}}
{{- if .GuestAgent}}
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
{{- end}}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
`

// Complete returns the Spec with a name and a UUID.
func (s Spec) Complete() Spec {
	if s.Namespace == "" {
		s.Namespace = "vmgrace-test"
	}
	if s.Name == "" {
		s.Name = "vm-" + strings.ToLower(rand.Text()[:8])
	}
	if s.UUID == "" {
		s.UUID = randomUUID()
	}
	return s
}

// DomainName returns the domain's name in libvirt, <namespace>_<name>.
func (s Spec) DomainName() string { return s.Namespace + "_" + s.Name }

// DomainXML returns the domain XML of a complete Spec. The kernel, the initramfs and the
// file for the serial console are paths on the domain's node (see [GuestImage]; a firmware
// guest has [HaltImage] and no initramfs). Without a kernel the firmware keeps looking for
// one, which takes 1 % of a processor.
func (s Spec) DomainXML(kernel, initrd, serial string) ([]byte, error) {
	escape := func(s string) (string, error) {
		var b bytes.Buffer
		err := xml.EscapeText(&b, []byte(s))
		return b.String(), err
	}
	tmpl, err := template.New("domain").Funcs(template.FuncMap{"xml": escape}).Parse(domainXML)
	if err != nil {
		return nil, fmt.Errorf("domain template: %w", err)
	}
	var b bytes.Buffer
	err = tmpl.Execute(&b, struct {
		Spec
		Domain, Kernel, Initrd, Cmdline, Serial string
	}{s, s.DomainName(), kernel, initrd, KernelArgs + s.Behaviour, serial})
	if err != nil {
		return nil, fmt.Errorf("domain XML of %s: %w", s.DomainName(), err)
	}
	return b.Bytes(), nil
}

func randomUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
