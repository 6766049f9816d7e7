package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestATouchIsEnough(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	g := shared.Boot(t, node.Spec{})
	l := a.Launcher(t, g)
	node.Eventually(t, soon, func() bool { _, ok := a.StatusOf(t, g); return ok }, "not guarded")
	l.Touch(t)
	g.WaitGone(t, soon)
	if s := l.WaitStopped(t, soon); s.Outcome != "Graceful" {
		t.Errorf("%+v", s)
	}
}

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

func TestASecondSignalOrTouchMovesNothing(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t, "--shutdown-retry-interval=1s").Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=4")
	from := v.SignalShim(t)
	deadline := v.WaitBegun(t)
	node.Never(t, time.Second, v.Gone, "gone early")
	v.SignalShim(t)
	v.Launcher.Touch(t)
	v.WaitTerminated(t, from.Add(4*time.Second), 50*ms)
	if got := v.Launcher.Status().Deadline; got != deadline {
		t.Errorf("the deadline moved from %s to %s", deadline, got)
	}
}

func TestAStaleTriggerIsClearedByTheNextShim(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	l := a.Launcher(t, g)
	l.Touch(t) // left behind while no agent runs
	v := a.VM(t, g, "--grace-period=0")
	v.WaitRegistered(t)
	a.Start(t)
	v.WaitGuarded(t)
	node.Never(t, time.Second, v.Gone, "a stale trigger ended the VM")
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

func TestADomainBehindItsTriggerIsDestroyedAtGrace0(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	name := "behind"
	l := a.LauncherFor(t, "vmgrace-test", name, "uid-behind")
	shim := l.Shim(t, "--grace-period=0", "--pid-file="+l.Dir+"/../behind.pid")
	node.Eventually(t, soon, func() bool { return l.Has("vm.json") }, "the shim does not register")
	if err := shim.Signal(15); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, soon, func() bool { return l.Has("shutdown") }, "no trigger")
	node.Never(t, 1500*ms, func() bool { return l.Status().Phase == "Stopped" || !l.Has("shutdown") }, "the trigger did not wait")
	g := shared.Start(t, node.Spec{Namespace: "vmgrace-test", Name: name, Firmware: true})
	g.WaitGone(t, soon)
	if s := l.WaitStopped(t, soon); s.Cause != "LauncherSignal" || s.Outcome != "Forced" {
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

func TestADomainStartedAgainInMidGraceIsLeftAlone(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	for _, persistent := range []bool{false, true} {
		t.Run(fmt.Sprintf("persistent=%v", persistent), func(t *testing.T) {
			t.Parallel()
			old := a.Guarded(t, node.Spec{Behaviour: "deaf", Persistent: persistent}, "--grace-period=8")
			old.SignalShim(t)
			old.WaitBegun(t)
			old.Virsh(t, "destroy")
			again := shared.Start(t, old.Spec)
			node.Eventually(t, soon, func() bool { s, ok := a.StatusOf(t, again); return ok && s.Phase == "Running" }, "the new instance is not guarded")
			node.Never(t, 9*time.Second, again.Gone, "the new instance was destroyed for the old one")
			if n := again.Presses(); n != 0 {
				t.Errorf("%d presses for the new instance", n)
			}
		})
	}
}
