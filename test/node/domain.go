package node

import (
	"bytes"
	"crypto/rand"
	"encoding/xml"
	"fmt"
	"strings"
	"text/template"
)

// Spec is a guest to be started. The zero value is a polite guest.
type Spec struct {
	// Namespace and Name make the domain's name <namespace>_<name>; where they
	// are "", the namespace is "vmgrace-test" and the name is unique.
	Namespace, Name string
	// UUID of the domain; "" = a random one.
	UUID string
	// Behaviour is put on the guest's kernel command line, see test/guest/init:
	// "deaf", "slow=3 presses=2", "boot=5", "agent=hung". "" is polite.
	Behaviour string
	// Firmware is a domain without an operating system: its firmware starts what
	// halts the processor (see [HaltImage]). It is deaf, quick to start, and no load.
	Firmware bool
	// NoShutdown: in its launcher, QEMU stays when the guest is off.
	NoShutdown bool
	// Unbootable is a firmware guest that has nothing to start, and so looks for it all
	// the time: its processor runs.
	Unbootable bool
	// GuestAgent adds the channel of the QEMU guest agent. A Behaviour with
	// agent= needs it.
	GuestAgent bool
	// Grace is the text of <deletionGracePeriodSeconds> in the KubeVirt
	// metadata; "" = no metadata.
	Grace string
	// OnPoweroff is the domain's <on_poweroff>; "" = destroy.
	OnPoweroff string
	// Disk is a block device of the host's, "" = none. It needs no cache of a host's,
	// so that two hosts may have it.
	Disk string
	// Image is a qcow2 image that the guest only reads, "" = none.
	Image string
	// CPUFeature is one that the domain's CPU must have, "" = any CPU.
	CPUFeature string
	// Persistent defines the domain; otherwise it is transient, as KubeVirt's are.
	Persistent bool
}

// Measured to boot fastest under emulation: 2 s instead of 2.5 s. On a busy
// machine the kernel takes a timer that is emulated late for a broken one, and
// panics, unless it is told not to check.
const kernelArgs = "console=ttyS0 quiet nokaslr mitigations=off lsm=none init_on_alloc=0 cryptomgr.notests no_timer_check "

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
{{- if .OnPoweroff}}
  <on_poweroff>{{xml .OnPoweroff}}</on_poweroff>
{{- end}}
  <devices>
    <serial type='file'><source path='{{xml .Serial}}'/></serial>
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

// DomainName is the name in libvirt, <namespace>_<name>.
func (s Spec) DomainName() string { return s.Namespace + "_" + s.Name }

// DomainXML is the domain of a Spec that is complete. The kernel and initramfs
// (see [GuestImage]; of a firmware guest [HaltImage] and none) and the file for the
// serial console are paths on its node. Without a kernel the firmware looks for one
// all the time, which takes 1 % of a processor.
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
	}{s, s.DomainName(), kernel, initrd, kernelArgs + s.Behaviour, serial})
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
