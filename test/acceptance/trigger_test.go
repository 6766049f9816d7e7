package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestATriggerOfAnotherVMIsRemovedAndCounted(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=1")
	v.Launcher.Write(t, "shutdown", `{"version":1,"uid":"somebody-else","signal":"SIGTERM","time":"2026-01-01T00:00:00Z"}`)
	node.Eventually(t, soon, func() bool { return !v.Launcher.Has("shutdown") }, "the foreign trigger is still there")
	node.Never(t, 2*time.Second, v.Gone, "another VM's trigger ended this one")
	if n := a.Metrics(t)[`vmgrace_rejected_total{reason="trigger_uid"}`]; n != 1 {
		t.Errorf("%v rejected triggers, want 1", n)
	}
}

func TestATriggerWaitsForItsDomain(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	name := "late"
	l := a.LauncherFor(t, "vmgrace-test", name, "uid-late")
	shim := l.Shim(t, "--grace-period=20", "--pid-file="+l.Dir+"/../never.pid")
	node.Eventually(t, soon, func() bool { return l.Has("vm.json") }, "the shim does not register")
	if err := shim.Signal(15); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, soon, func() bool { return l.Has("shutdown") }, "no trigger")
	node.Never(t, time.Second, func() bool { return l.Status().Phase == "Stopped" || !l.Has("shutdown") }, "the trigger did not wait")
	g := shared.Start(t, node.Spec{Namespace: "vmgrace-test", Name: name})
	g.WaitGone(t, 2*time.Minute)
	if s := l.WaitStopped(t, soon); s.Cause != "LauncherSignal" || s.Outcome == "AlreadyStopped" || s.UID != "uid-late" {
		t.Errorf("%+v", s)
	}
	if code, ok := shim.Exited(soon); !ok || code != 0 {
		t.Errorf("shim: %d, ended %v", code, ok)
	}
}

// Given a shim whose VM does not come. When it is signalled, then it ends after 30 s. The
// trigger stays for 30 s more, and then nothing of it is left.
func TestASignalledShimWithoutAVMEndsAfter30Seconds(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	l := a.LauncherFor(t, "vmgrace-test", "novm", "uid-novm")
	shim := l.Shim(t, "--grace-period=2", "--pid-file="+l.Dir+"/../never.pid")
	node.Eventually(t, soon, func() bool { return l.Has("vm.json") }, "the shim does not register")
	if err := shim.Signal(15); err != nil {
		t.Fatal(err)
	}
	if code, ok := shim.Exited(30*time.Second + soon); !ok || code != 0 {
		t.Errorf("shim: %d, ended %v\n%s", code, ok, shim.Log())
	}
	if s := l.Status(); s.Outcome != "AlreadyStopped" || !l.Has("shutdown") {
		t.Errorf("%+v, trigger there: %v", s, l.Has("shutdown"))
	}
	node.Eventually(t, 30*time.Second+soon, func() bool { return !l.Has("shutdown") }, "the trigger is still there")
}

func TestTheNextVMOfThatNameLives(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	first := a.Guarded(t, node.Spec{}, "--grace-period=30")
	first.SignalShim(t)
	first.WaitStopped(t, "LauncherSignal", "Graceful")
	first.WaitExit(t, 0)

	node.Eventually(t, soon, func() bool { // libvirt needs time to forget a domain
		_, err := shared.TryVirsh(t.Context(), "domstate", first.Domain)
		return err != nil
	}, "libvirt still has the domain")
	next := shared.Start(t, first.Spec)
	first.Launcher.Shim(t, "--grace-period=0", fmt.Sprintf("--pid=%d", next.PID))
	node.Eventually(t, soon, func() bool { _, ok := a.StatusOf(t, next); return ok }, "not guarded")
	node.Never(t, 2*time.Second, next.Gone, "the next VM of that name did not live")
	if s := first.Launcher.Status(); s.Phase != "Running" {
		t.Errorf("status.json: %+v, want Running", s)
	}
}
