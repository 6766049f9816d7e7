package inpod

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/drivertest"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestALauncherSaysThatItsOwnGuestIsOff(t *testing.T) {
	w := given(t)
	domain, _ := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	w.look(t, domain)
	v := w.vm(domain)
	told := make(chan hypervisor.Event, 10)
	w.hear(func(e hypervisor.Event) { told <- e })
	view, err := v.Directory.Look()
	kit.Must(t, err)
	power := func() grace.Power {
		d, err := w.Get(t.Context(), domain)
		kit.Must(t, err)
		return d.Power
	}
	off, other := view, view
	off.Guest, other.Guest = signals.GuestOff, signals.GuestOff
	other.PID++
	if v.learn(&view); power() != grace.PowerOn {
		t.Error("off, though nobody says so")
	}
	if v.learn(&other); power() != grace.PowerOn {
		t.Error("what is said of another process counts")
	}
	if v.learn(&off); power() != grace.PowerOff {
		t.Error("it does not count")
	}
	select {
	case e := <-told:
		if e.Name != domain {
			t.Errorf("%+v", e)
		}
	case <-time.After(testTimeout):
		t.Error("nobody is told to look")
	}
}

func TestAMonitorThatSomebodyElseHoldsIsAnErrorOfItsOwn(t *testing.T) {
	// given: a launcher that says nothing by itself
	w := given(t)
	domain, _ := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	w.look(t, domain)
	kit.Must(t, w.shims[domain].Process.Signal(syscall.SIGSTOP))
	v := w.vm(domain)
	d, err := w.Get(t.Context(), domain)
	kit.Must(t, err)
	view, err := v.Directory.Look()
	kit.Must(t, err)
	// when
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	asked := make(chan error, 1)
	go func() { asked <- w.Ask(ctx, domain, d.Instance, grace.ModeACPI) }()
	requested := func() uint64 {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.request
	}
	kit.Eventually(t, "it is asked", func() bool { return requested() != 0 })
	view.Requested, view.Result = requested(), signals.ResultBusy+": another program holds it"
	v.learn(&view)
	// then
	if err := <-asked; !errors.Is(err, hypervisor.ErrBusy) {
		t.Errorf("%v", err)
	}
}

func TestOfAProcessThatNobodyWatchedOnlyTheEndIsKnown(t *testing.T) {
	w := given(t)
	domain, _ := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	gone := grace.Instance{UUID: hypervisor.LauncherPrefix + domain, PID: 1 << 22, Start: 1}
	if end, err := w.Ended(t.Context(), domain, gone); err != nil || end != grace.EndExited {
		t.Errorf("%q, %v", end, err)
	}
}

// Given a trigger that somebody made by hand, in the directory of a VM of libvirt's: nobody states a
// UID. When the VM has stopped, then status.json says so, although it names no VM.
func TestALauncherWithoutAUIDIsToldOfTheEnd(t *testing.T) {
	w := given(t)
	domain, dir := w.directory(t, "")
	kit.Must(t, dir.WriteStatus(grace.Status{Phase: grace.Stopped, Outcome: grace.Forced}))
	if said := w.status(domain); !strings.Contains(said, `"phase":"Stopped"`) {
		t.Error(said)
	}
}
