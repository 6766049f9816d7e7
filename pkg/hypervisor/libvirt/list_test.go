//go:build !unit

package libvirt

import (
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/node"
)

// listedAs returns what a list says of one domain.
func listedAs(t *testing.T, d *Driver, name string) hypervisor.Domain {
	t.Helper()
	all, err := d.List(bounded(t), only(name))
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

func TestEachListShowsWhatHasChanged(t *testing.T) {
	d, p := open(t)
	g := shared.Boot(t, node.Spec{GuestAgent: true, Behaviour: "agent=ok"})
	node.Eventually(t, testTimeout, func() bool { return listedAs(t, d, g.Domain).Agent }, "the guest's agent is there")
	running := listedAs(t, d, g.Domain)
	for _, change := range []struct {
		name string
		make func()
		want grace.Power
	}{
		{"nothing", func() {}, grace.PowerOn},
		{"suspend", func() { g.Virsh(t, "suspend") }, grace.PowerPaused},
		{"resume", func() { g.Virsh(t, "resume") }, grace.PowerOn},
		{"another grace period", func() {
			g.Virsh(t, "metadata", "http://kubevirt.io", "--key", "kubevirt", "--set", "<kubevirt><graceperiod><deletionGracePeriodSeconds>77</deletionGracePeriodSeconds></graceperiod></kubevirt>")
		}, grace.PowerOn},
		{"libvirtd cut off", func() { p.cut(t) }, grace.PowerUnknown},
		{"libvirtd back", func() { p.mend(t) }, grace.PowerOn},
	} {
		change.make()
		is := listedAs(t, d, g.Domain)
		if is.Power != change.want || is.Instance != running.Instance || change.name == "another grace period" && is.Grace != "77" {
			t.Errorf("%s: listed as %+v", change.name, is)
		}
	}

	other := shared.Boot(t, node.Spec{Firmware: true})
	both := func(name string) bool { return name == g.Domain || name == other.Domain }
	if all, err := d.List(bounded(t), both); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if is := listedAs(t, d, other.Domain); is.Power != grace.PowerOn || is.Instance.PID != other.PID {
		t.Errorf("listed as %+v", is)
	}
	g.Virsh(t, "destroy")
	if all, err := d.List(bounded(t), both); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
