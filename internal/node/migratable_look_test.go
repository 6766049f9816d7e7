package node

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/inpod"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/libvirt"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/kit"
)

// seen is a launcher directory with one VM.
type seen struct {
	inpod.Directory

	says signals.Asking
}

func (s seen) Look() (watch.View, error) {
	return watch.View{Directory: grace.Directory{Present: true, Registered: true}, Asking: s.says}, nil
}

// Where migrations are switched off, KubeVirt or nobody says whether a libvirt's
// domain can be moved; of a VM in its launcher pod only this agent can.
func TestWithoutMigrationsOnlyVMsInTheirPodsAreJudged(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n := &node{Options: &Options{}, log: log, driver: hypervisors{launchers: inpod.New(), libvirt: libvirt.New(libvirt.Config{Logger: log})}}
	t.Cleanup(func() { kit.Must(t, n.driver.close()) })
	for name, asks := range map[string]string{"pod": signals.AsksLauncher, "libvirt": ""} {
		_, err := n.driver.launchers.Directory(name, "", seen{says: signals.Asking{Asks: asks}}).Look()
		kit.Must(t, err)
	}
	c := n.conditions()
	if c == nil {
		t.Fatal("nothing is judged")
	}
	g, err := c.Look(t.Context(), "pod")
	if err != nil || !g.InLauncher || g.Off == "" {
		t.Errorf("%+v, %v; want a VM in its launcher, which nobody moves", g, err)
	}
	if _, err := c.Look(t.Context(), "libvirt"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a domain of libvirt's is judged: %v", err)
	}
	n.DryRun = true
	if n.conditions() != nil {
		t.Error("a dry run tells the API server")
	}
}

// changing is a launcher directory whose vm.json changes.
type changing struct {
	inpod.Directory

	says atomic.Pointer[signals.Asking]
}

func (c *changing) Look() (watch.View, error) {
	return watch.View{Directory: grace.Directory{Present: true, Registered: true}, Asking: *c.says.Load()}, nil
}

// Given an agent that takes part in migrations. Then a VM in its launcher pod is judged by what
// its vm.json says at that moment, whenever the agent has looked at it last.
func TestAVMInItsPodIsJudgedByWhatItsLauncherSaysNow(t *testing.T) {
	n := &node{Options: &Options{}, log: slog.New(slog.DiscardHandler), driver: hypervisors{launchers: inpod.New()}, moves: &migrations{}}
	t.Cleanup(func() { kit.Must(t, n.driver.close()) })
	var launcher changing
	launcher.says.Store(&signals.Asking{Asks: signals.AsksLauncher})
	_, err := n.driver.launchers.Directory("ns_vm", "", &launcher).Look()
	kit.Must(t, err)
	for _, says := range []signals.Moving{{}, {Able: "the monitor does not answer"}} {
		launcher.says.Store(&signals.Asking{Asks: signals.AsksLauncher, Migration: says})
		if g, err := n.conditions().Look(t.Context(), "ns_vm"); err != nil || !g.InLauncher || g.Off != "" || g.Moving != says {
			t.Errorf("%+v, %v; want %+v", g, err, says)
		}
	}
	// One that can be sent needs a process whose disks can be looked at.
	launcher.says.Store(&signals.Asking{Asks: signals.AsksLauncher, Migration: signals.Moving{Able: signals.AbleOK}})
	if _, err := n.conditions().Look(t.Context(), "ns_vm"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a VM without a process is judged: %v", err)
	}
	// A launcher that does not ask the guest itself cannot move it.
	launcher.says.Store(&signals.Asking{Migration: signals.Moving{Able: signals.AbleOK}})
	if g, err := n.conditions().Look(t.Context(), "ns_vm"); err != nil || g.Moving != (signals.Moving{}) {
		t.Errorf("%+v, %v; want nothing said", g, err)
	}
	if _, err := n.conditions().Look(t.Context(), "ns_none"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a VM without a launcher is judged: %v", err)
	}
}
