//go:build !unit

package libvirt

import (
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/node"
)

// listedAs is what a list says of one domain.
func listedAs(t *testing.T, d *Driver, name string) hypervisor.Domain {
	t.Helper()
	all, err := d.List(bounded(t), only(name))
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

// waitCalm lists until libvirtd is not asked any more.
func waitCalm(t *testing.T, d *Driver, p *proxy, name string) {
	t.Helper()
	node.Eventually(t, patience, func() bool {
		before := p.sent()
		listedAs(t, d, name)
		return p.sent() == before
	}, "lists without a question to libvirtd")
}

func TestAListIsWhatLibvirtdSaysWhetherItIsAskedOrNot(t *testing.T) {
	d, p := open(t)
	events := listen(t, d)
	node.Eventually(t, patience, func() bool { return events.count(hypervisor.Event{}) > 0 }, "connected")
	g := shared.Boot(t, node.Spec{GuestAgent: true, Behaviour: "agent=ok"})
	node.Eventually(t, patience, func() bool { return listedAs(t, d, g.Domain).Agent }, "the guest's agent is there")
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
	} {
		waitCalm(t, d, p, g.Domain)
		change.make()
		is := listedAs(t, d, g.Domain)
		if is.Power != change.want || is.Instance != running.Instance || change.name == "another grace period" && is.Grace != "77" {
			t.Errorf("%s: listed as %+v", change.name, is)
		}
	}

	// When there is somebody else to be asked about, nobody is left out.
	waitCalm(t, d, p, g.Domain)
	other := shared.Boot(t, node.Spec{Firmware: true})
	both := func(name string) bool { return name == g.Domain || name == other.Domain }
	if all, err := d.List(bounded(t), both); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	waitCalm(t, d, p, g.Domain)
	if is := listedAs(t, d, other.Domain); is.Power != grace.PowerOn || is.Instance.PID != other.PID {
		t.Errorf("listed as %+v", is)
	}
	g.Virsh(t, "destroy")
	if all, err := d.List(bounded(t), both); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestLibvirtdIsAskedAgainAfterAWhileAndAfterEachConnect(t *testing.T) {
	d, p := open(t)
	listen(t, d)
	g := shared.Boot(t, node.Spec{Firmware: true})
	for name, begin := range map[string]func(){
		"a while": func() { d.said.at = d.said.at.Add(-standsFor) },
		"a connect": func() {
			p.cut(t)
			node.Eventually(t, patience, func() bool { return !d.Up() }, "disconnected")
			p.mend(t)
			node.Eventually(t, patience, d.Up, "connected")
		},
		"a cut": func() { p.cut(t); node.Eventually(t, patience, func() bool { return !d.Up() }, "disconnected") },
	} {
		node.Eventually(t, patience, d.Up, "connected")
		waitCalm(t, d, p, g.Domain)
		begin()
		before := p.sent()
		is := listedAs(t, d, g.Domain)
		if asked := p.sent() > before; name != "a cut" && !asked {
			t.Errorf("after %s it was not asked", name)
		}
		if name == "a cut" {
			if is.Power != grace.PowerUnknown {
				t.Errorf("nobody was there to say it: %+v", is)
			}
			p.mend(t)
		}
	}
}
