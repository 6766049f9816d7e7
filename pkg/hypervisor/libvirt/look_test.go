//go:build !unit

package libvirt

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

func only(name string) func(string) bool { return func(other string) bool { return other == name } }

func TestGetKnowsQEMUGraceAndAgent(t *testing.T) {
	d, _ := open(t)
	g := shared.Boot(t, node.Spec{GuestAgent: true, Behaviour: "agent=hung", Grace: "33"})
	want := hypervisor.Domain{
		Name: g.Domain,
		Domain: grace.Domain{
			Instance: grace.Instance{UUID: g.UUID, PID: g.PID, Start: g.StartTime}, Power: grace.PowerOn, Agent: true, Grace: "33",
		},
	}
	node.Eventually(t, testTimeout, func() bool { dom, err := d.Get(bounded(t), g.Domain); return err == nil && dom == want }, "it is %+v", want)

	// A hung agent holds its own call, and neither the caller nor the power button.
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- d.Ask(ctx, g.Domain, want.Instance, grace.ModeAgent) }()
	node.Eventually(t, testTimeout, func() bool { return len(d.agents.slots) == 1 }, "the agent is asked")
	if err := d.Ask(bounded(t), g.Domain, want.Instance, grace.ModeACPI); err != nil {
		t.Error(err)
	}
	g.WaitGone(t, testTimeout)
	if presses := g.Presses(); presses != 1 {
		t.Errorf("%d presses", presses)
	}
	cancel()
	t.Log("the call to the hung agent ended:", <-asked)
}

func TestAnAgentThatIsNotConnectedDoesNotAnswer(t *testing.T) {
	d, _ := open(t)
	g := shared.Boot(t, node.Spec{Firmware: true, GuestAgent: true})
	err := d.Ask(bounded(t), g.Domain, instance(t, d, g.Domain), grace.ModeAgent)
	if !errors.Is(err, hypervisor.ErrNoAgent) {
		t.Errorf("got %v", err)
	}
}

func TestADomainCreatedPausedWaitsForAUser(t *testing.T) {
	d, _ := open(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	g.Virsh(t, "destroy")
	shared.Virsh(t, "create", "--paused", filepath.Join(shared.Dir, g.Domain+".xml"))
	defer shared.Virsh(t, "destroy", g.Domain)
	if dom, err := d.Get(bounded(t), g.Domain); err != nil || dom.Power != grace.PowerPaused {
		t.Errorf("%+v, %v", dom, err)
	}
	if err := d.Resume(bounded(t), g.Domain, instance(t, d, g.Domain)); err != nil {
		t.Error(err)
	}
	if dom, err := d.Get(bounded(t), g.Domain); err != nil || dom.Power != grace.PowerOn {
		t.Errorf("%+v, %v", dom, err)
	}
}

func TestAPersistentDomainIsNotFoundWhenItIsOff(t *testing.T) {
	d, _ := open(t)
	g := shared.Boot(t, node.Spec{Firmware: true, Persistent: true})
	defer g.Virsh(t, "undefine")
	g.Virsh(t, "autostart")
	dom, err := d.Get(bounded(t), g.Domain)
	if err != nil || !dom.Persistent || !dom.Autostart {
		t.Errorf("%+v, %v", dom, err)
	}
	i := instance(t, d, g.Domain)
	if err := d.Destroy(bounded(t), g.Domain, i); err != nil {
		t.Error(err)
	}
	_, err = d.Get(bounded(t), g.Domain)
	for what, err := range map[string]error{
		"get": err, "destroy": d.Destroy(bounded(t), g.Domain, i),
		"ask": d.Ask(bounded(t), g.Domain, i, grace.ModeACPI), "resume": d.Resume(bounded(t), g.Domain, i),
	} {
		if !errors.Is(err, hypervisor.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, err := d.List(bounded(t), only(g.Domain)); err != nil || len(all) != 0 {
		t.Errorf("listed: %+v, %v", all, err)
	}
	d.logDir = "" // without a log libvirt itself is asked
	if end, err := d.Ended(bounded(t), g.Domain, i); err != nil || end != grace.EndDestroyed {
		t.Errorf("ended as %q, %v", end, err)
	}
}

func TestWithLibvirtdDeadTheRunDirectoryKnows(t *testing.T) {
	d, _ := open(t)
	events := listen(t, d)
	g := shared.Boot(t, node.Spec{Firmware: true, Grace: "7"})
	i := instance(t, d, g.Domain)
	shared.Libvirtd().Kill()
	want := hypervisor.Domain{Name: g.Domain, Domain: grace.Domain{Instance: i, Grace: "7"}}
	if dom, err := d.Get(bounded(t), g.Domain); err != nil || dom != want {
		t.Errorf("%+v, %v, want %+v", dom, err, want)
	}
	if all, err := d.List(bounded(t), only(g.Domain)); err != nil || len(all) != 1 || all[0] != want {
		t.Errorf("%+v, %v, want %+v", all, err, want)
	}

	g.Signal(t, syscall.SIGKILL)
	g.WaitGone(t, testTimeout)
	if _, err := d.Get(bounded(t), g.Domain); !errors.Is(err, hypervisor.ErrUnavailable) || errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("nobody who could know was asked: %v", err)
	}
	if all, err := d.List(bounded(t), only(g.Domain)); err != nil || len(all) != 0 {
		t.Errorf("its process is dead: %+v, %v", all, err)
	}
	shared.RestartLibvirtd(t)
	node.Eventually(t, testTimeout, func() bool { return d.Up() && events.count(hypervisor.Event{}) >= 2 }, "connected again")
	node.Eventually(t, testTimeout, func() bool { _, err := d.Get(bounded(t), g.Domain); return errors.Is(err, hypervisor.ErrNotFound) }, "libvirt says so too")
}

func TestNeitherSourceIsNotAnEmptyList(t *testing.T) {
	d, p := open(t)
	d.run = newRunDir(filepath.Join(t.TempDir(), "missing"))
	p.cut(t)
	if all, err := d.List(bounded(t), only("x")); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := d.Get(bounded(t), "x"); !errors.Is(err, hypervisor.ErrUnavailable) || errors.Is(err, hypervisor.ErrNotFound) {
		t.Error(err)
	}
}

func TestAProcessThatLibvirtForgotIsNotGone(t *testing.T) {
	d, _ := open(t)
	dir := t.TempDir()
	d.run = newRunDir(dir)
	pid := qemu(t, "vmgrace-test_forgotten", uuidA).Process.Pid
	kit.Write(t, dir+"/vmgrace-test_forgotten.xml", statusXML("vmgrace-test_forgotten", uuidA, pid))
	dom, err := d.Get(bounded(t), "vmgrace-test_forgotten")
	if err != nil || dom.Instance.PID != pid || dom.Power != grace.PowerUnknown {
		t.Errorf("%+v, %v", dom, err)
	}
	for what, err := range map[string]error{
		"ask":     d.Ask(bounded(t), dom.Name, dom.Instance, grace.ModeACPI),
		"destroy": d.Destroy(bounded(t), dom.Name, dom.Instance),
	} {
		if !errors.Is(err, hypervisor.ErrUnavailable) || errors.Is(err, hypervisor.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestADriverWithoutARunDirectoryIdentifiesNoProcess(t *testing.T) {
	leavesNothing(t)
	d := New(Config{URI: "test:///default"})
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	dom, err := d.Get(bounded(t), "test")
	if err != nil || dom.Instance.UUID == "" || dom.Instance.PID != 0 || dom.Power != grace.PowerOn || !dom.Persistent {
		t.Errorf("%+v, %v", dom, err)
	}
	if all, err := d.List(bounded(t), only("test")); err != nil || len(all) != 1 || all[0] != dom {
		t.Errorf("%+v, %v", all, err)
	}
	if err := d.Destroy(bounded(t), "test", dom.Instance); err != nil {
		t.Error(err)
	}
}

func TestTheSystemHasItsUsualDirectories(t *testing.T) {
	for _, uri := range []string{"qemu:///system", "qemu+unix:///system?socket=/x"} {
		if d := New(Config{URI: uri}); d.run.path != systemRunDir || d.logDir != systemLogDir {
			t.Errorf("%s: %s, %s", uri, d.run.path, d.logDir)
		}
	}
	if d := New(Config{URI: "test:///default"}); d.run.path != "" || d.logDir != "" {
		t.Errorf("%s, %s", d.run.path, d.logDir)
	}
}
