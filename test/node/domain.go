package node

import (
	"bytes"
	"encoding/xml"
	"fmt"
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
	// Firmware is a domain without kernel and disk: deaf, and quick to start.
	Firmware bool
	// GuestAgent adds the channel of the QEMU guest agent. A Behaviour with
	// agent= needs it.
	GuestAgent bool
	// Grace is the text of <deletionGracePeriodSeconds> in the KubeVirt
	// metadata; "" = no metadata.
	Grace string
	// OnPoweroff is the domain's <on_poweroff>; "" = destroy.
	OnPoweroff string
	// Persistent defines the domain; otherwise it is transient, as KubeVirt's are.
	Persistent bool
}

// Measured to boot fastest under emulation: 2 s instead of 2.5 s.
const kernelArgs = "console=ttyS0 quiet nokaslr mitigations=off lsm=none init_on_alloc=0 cryptomgr.notests "

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
{{- if not .Firmware}}
    <kernel>{{xml .Kernel}}</kernel>
    <initrd>{{xml .Initrd}}</initrd>
    <cmdline>{{xml .Cmdline}}</cmdline>
{{- end}}
  </os>
  <features><acpi/></features>
  <pm><suspend-to-mem enabled='yes'/></pm>
{{- if .OnPoweroff}}
  <on_poweroff>{{xml .OnPoweroff}}</on_poweroff>
{{- end}}
  <devices>
    <serial type='file'><source path='{{xml .Serial}}'/></serial>
{{- if .GuestAgent}}
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
{{- end}}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
`

// domain is what the template needs.
type domain struct {
	Spec
	Domain, Kernel, Initrd, Cmdline, Serial string
}

func (d domain) xml() ([]byte, error) {
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
	if err := tmpl.Execute(&b, d); err != nil {
		return nil, fmt.Errorf("domain XML of %s: %w", d.Domain, err)
	}
	return b.Bytes(), nil
}
