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
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/drivertest"
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
	off, other, panicked := view, view, view
	off.Guest, other.Guest, panicked.Guest = signals.GuestOff, signals.GuestOff, signals.GuestPanicked
	other.PID++
	if v.learn(&view); power() != grace.PowerOn {
		t.Error("off, though nobody says so")
	}
	if v.learn(&other); power() != grace.PowerOn {
		t.Error("what is said of another process counts")
	}
	if v.learn(&panicked); power() != grace.PowerCrashed {
		t.Error("a panic does not count")
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

// Given a launcher that asks by monitor and agent, when it answers a request, then the agent knows a
// monitor that is busy, and a guest that refuses, from other failures.
func TestWhatALauncherAnswersIsTold(t *testing.T) {
	for result, want := range map[string]func(error) bool{
		signals.ResultBusy + ": another program holds it": func(err error) bool { return errors.Is(err, hypervisor.ErrBusy) },
		signals.ResultRefused + "Access denied": func(err error) bool {
			refused, ok := errors.AsType[*hypervisor.Refusal](err)
			return ok && refused.Words() == "Access denied"
		},
		signals.ResultOK: func(err error) bool { return err == nil },
	} {
		t.Run(result, func(t *testing.T) {
			// given: a launcher that says nothing by itself
			w := given(t)
			domain, _ := w.directory(t, "")
			w.launch(t, domain, drivertest.Deaf)
			w.look(t, domain)
			kit.Must(t, w.shims[domain].Process.Signal(syscall.SIGSTOP))
			v := w.vm(domain)
			view, err := v.Directory.Look()
			kit.Must(t, err)
			view.Agent = true
			v.learn(&view)
			d, err := w.Get(t.Context(), domain)
			kit.Must(t, err)
			if !d.Agent {
				t.Error("nobody knows of its agent")
			}
			// when
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			asked := make(chan error, 1)
			go func() { asked <- w.Ask(ctx, domain, d.Instance, grace.ModeAgent) }()
			kit.Eventually(t, "its agent is asked", func() bool { return strings.Contains(w.status(domain), `"requestBy":"agent"`) })
			v.mu.Lock()
			view.Requested, view.Result = v.request, result
			v.mu.Unlock()
			v.learn(&view)
			// then
			if err := <-asked; !want(err) {
				t.Errorf("%v", err)
			}
		})
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
