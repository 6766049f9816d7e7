package inpod

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

const x86 = `processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 85
model name	: Intel(R) Xeon(R)
stepping	: 7
microcode	: 0x5003604
cpu MHz		: 2499.998
flags		: fpu vme de pse

processor	: 1
vendor_id	: GenuineIntel
flags		: fpu
`

const arm = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"

func TestMachinesAreEqualIfAGuestSeesNoDifference(t *testing.T) {
	kvm := func(cpu string) signals.Machine {
		return signals.Machine{Type: "pc-q35-7.2", Accelerator: "kvm", CPU: cpu}
	}
	of := func(m signals.Machine, cpuinfo string) string {
		path := filepath.Join(t.TempDir(), "cpuinfo")
		kit.Write(t, path, cpuinfo)
		return machine(m, path)
	}
	for name, c := range map[string]struct {
		m           signals.Machine
		here, there string
		equal       bool
	}{
		"the same":                    {kvm("host"), x86, x86, true},
		"another clock and microcode": {kvm("host"), x86, strings.NewReplacer("2499", "1200", "0x5003604", "0x1").Replace(x86), true},
		"another second CPU":          {kvm("host"), x86, strings.Replace(x86, "flags		: fpu\n", "flags		: fpu x\n", 1), true},
		"another stepping":            {kvm("host"), x86, strings.Replace(x86, ": 7", ": 6", 1), false},
		"another model":               {kvm("max"), x86, strings.Replace(x86, "85", "86", 1), false},
		"other flags":                 {kvm("host,migratable=on"), x86, strings.Replace(x86, " pse", " pse avx", 1), false},
		"a CPU that QEMU names":       {kvm("Nehalem"), x86, arm, true},
		"an emulated one":             {signals.Machine{Type: "pc-q35-7.2", Accelerator: "tcg", CPU: "max"}, x86, arm, true},
		"ARM":                         {kvm("host"), arm, arm, true},
		"ARM, another part":           {kvm("host"), arm, strings.Replace(arm, "0xd0c", "0xd40", 1), false},
	} {
		here, there := of(c.m, c.here), of(c.m, c.there)
		if here == "" || (here == there) != c.equal {
			t.Errorf("%s: %q and %q", name, here, there)
		}
	}
	for name, c := range map[string]struct {
		m    signals.Machine
		here string
	}{
		"no type":        {signals.Machine{Accelerator: "tcg", CPU: "qemu64"}, x86},
		"no accelerator": {signals.Machine{Type: "pc-q35-7.2", CPU: "qemu64"}, x86},
		"no CPU":         {kvm(""), x86},
		"no host CPU":    {kvm("host"), "processor: 0\n"},
		"a long line":    {kvm("host"), "flags: " + strings.Repeat("x ", maxCPU)},
	} {
		if is := of(c.m, c.here); is != "" {
			t.Errorf("%s: %q", name, is)
		}
	}
	whole, lacking := kvm("Nehalem"), kvm("Nehalem")
	whole.Features, lacking.Features = "1", "2"
	if here, there := of(whole, x86), of(lacking, x86); here == there {
		t.Errorf("a host that lacks a feature: %q and %q", here, there)
	}
	if is := machine(kvm("host"), "/no/such/file"); is != "" {
		t.Errorf("%q", is)
	}
}
