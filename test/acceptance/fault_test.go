package acceptance

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAFrozenQEMUDiesAfterTheDestroyTimeoutAndDelaysNoOther(t *testing.T) {
	a := shared.Agent(t, "--destroy-timeout=3s", "--shutdown-retry-interval=1s").Start(t)
	frozen := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3")
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=30")
	frozen.Signal(t, syscall.SIGSTOP)

	from := frozen.SignalShim(t)
	fromDeaf := deaf.SignalShim(t)
	fromPolite := polite.SignalShim(t)
	if took := polite.WaitGone(t, soon).Sub(fromPolite); took > time.Second {
		t.Errorf("the polite neighbour took %v", took)
	}
	deaf.WaitTerminated(t, fromDeaf.Add(3*time.Second), 50*ms)
	gone := frozen.WaitGone(t, soon)
	if late := gone.Sub(from.Add(6 * time.Second)); late < 0 || late > time.Second {
		t.Errorf("the frozen QEMU died %v after deadline + destroy-timeout, want 0 to 1s", late)
	}
	for _, v := range []*node.VM{frozen, deaf} {
		v.WaitStopped(t, "LauncherSignal", "Forced")
	}
}

func TestTheDeadlineHoldsWithLibvirtdDead(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=4")
	from := v.SignalShim(t)
	v.WaitBegun(t)
	n.Libvirtd().Kill()
	v.WaitTerminated(t, from.Add(4*time.Second), 50*ms)
	v.WaitExit(t, 0)
	v.WaitStopped(t, "LauncherSignal", "Forced")
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 0 {
		t.Errorf("vmgrace_libvirt_up is %v", up)
	}
}

func TestTheDeadlineHoldsWithLibvirtdDeadAndTheAgentRestarted(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=5")
	resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=2")
	from := v.SignalShim(t)
	v.WaitBegun(t)
	n.Libvirtd().Kill()
	a.Restart(t)
	fromResting := resting.SignalShim(t) // a shutdown that begins with no libvirtd at all
	resting.WaitTerminated(t, fromResting.Add(2*time.Second), 50*ms)
	v.WaitTerminated(t, from.Add(5*time.Second), 50*ms)
	resting.WaitStopped(t, "LauncherSignal", "Forced")
	v.WaitStopped(t, "LauncherSignal", "Forced")
}

func TestTheDeadlineHoldsWithLibvirtdFrozen(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3")
	if err := n.Libvirtd().Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	v.WaitTerminated(t, v.SignalShim(t).Add(3*time.Second), 50*ms)
	if code, took := a.Term(t); code != 0 || took > time.Second {
		t.Errorf("SIGTERM with a frozen libvirtd: exit status %d after %v", code, took)
	}
}

func TestAGuestThatPowersOffWhileLibvirtdRestartsIsGraceful(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Behaviour: "slow=3"}, "--grace-period=60")
	v.SignalShim(t)
	node.Eventually(t, soon, func() bool { return v.Presses() > 0 }, "no press")
	n.RestartLibvirtd(t)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestAShutdownThatBeginsWithoutLibvirtdIsAskedWhenItIsBack(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{}, "--grace-period=60")
	n.Libvirtd().Kill()
	v.SignalShim(t)
	v.WaitBegun(t)
	n.RestartLibvirtd(t)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestThirtyDeafGuestsWithOneDeadline(t *testing.T) {
	const guests = 30
	a := shared.Agent(t).Start(t)
	stranger := shared.Boot(t, node.Spec{Namespace: "vmgrace-stranger", Firmware: true}) // no launcher directory
	vms := make([]*node.VM, guests)
	for i := range vms {
		vms[i] = a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=4")
	}
	first := time.Now()
	for _, v := range vms {
		v.SignalShim(t)
	}
	var earliest, latest time.Time
	for _, v := range vms {
		deadline := node.WallTime(t, v.WaitBegun(t))
		v.WaitGone(t, soon)
		s, ok := v.Terminated()
		if !ok {
			t.Fatalf("%s: no signal in QEMU's log", v.Domain)
		}
		// The deadline in status.json is cut to milliseconds.
		if late := s.At.Sub(deadline); late < 0 || late > 200*ms {
			t.Errorf("%s: SIGTERM %v after its deadline", v.Domain, late)
		}
		if earliest.IsZero() || s.At.Before(earliest) {
			earliest = s.At
		}
		if s.At.After(latest) {
			latest = s.At
		}
	}
	if earliest.Before(first.Add(4 * time.Second)) {
		t.Errorf("a SIGTERM came %v early", first.Add(4*time.Second).Sub(earliest))
	}
	t.Logf("SIGTERMs from %v to %v after the first trigger", earliest.Sub(first), latest.Sub(first))
	for _, v := range vms {
		v.WaitStopped(t, "LauncherSignal", "Forced")
	}
	if stranger.Gone() {
		t.Error("a domain that is not ours was touched")
	}
	if _, ok := a.StatusOf(t, stranger); ok {
		t.Error("a domain that is not ours was recorded")
	}
	for _, phase := range []string{"Running", "ShuttingDown", "Destroying"} {
		if n := a.Metrics(t)[fmt.Sprintf("vmgrace_vms{phase=%q}", phase)]; n != 0 {
			t.Errorf("a domain that is not ours is counted: %v %s", n, phase)
		}
	}
}

func TestVMsThatComeAndGoLeaveNothingInTheAgent(t *testing.T) {
	a := shared.Agent(t).Start(t)
	round := func(n int) {
		vms := make([]*node.VM, n)
		for i := range vms {
			vms[i] = a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=0")
		}
		for _, v := range vms {
			v.SignalShim(t)
		}
		for _, v := range vms {
			v.WaitStopped(t, "LauncherSignal", "Forced")
			v.WaitExit(t, 0)
		}
	}
	round(5) // connections that are kept are open now
	const more = 20
	first, now := a.Metrics(t), map[string]float64{}
	for range more / 5 {
		round(5)
	}
	defer func() {
		t.Logf("goroutines %v, then %v; fds %v, then %v", first["go_goroutines"], now["go_goroutines"], first["process_open_fds"], now["process_open_fds"])
	}()
	// Launcher directories stay, and with them a keeper each (one goroutine).
	// Connections to libvirt that nobody uses are closed after a while, so
	// there may be fewer descriptors than at first.
	node.Eventually(t, 2*time.Minute, func() bool {
		now = a.Metrics(t)
		return now["go_goroutines"] <= first["go_goroutines"]+more+5 && now["process_open_fds"] <= first["process_open_fds"]
	}, "the agent holds more than the %v goroutines and %v fds of the beginning", first["go_goroutines"], first["process_open_fds"])
}
