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
	frozen := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=3")
	deaf := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=3")
	polite := guarded(t, a, shared, node.Spec{}, "--grace-period=30")
	frozen.Signal(t, syscall.SIGSTOP)

	from := frozen.signal(t)
	fromDeaf := deaf.signal(t)
	fromPolite := polite.signal(t)
	if took := polite.WaitGone(t, soon).Sub(fromPolite); took > time.Second {
		t.Errorf("the polite neighbour took %v", took)
	}
	deaf.terminated(t, fromDeaf, 3*time.Second, 50*ms)
	gone := frozen.WaitGone(t, soon)
	if late := gone.Sub(from.Add(6 * time.Second)); late < 0 || late > time.Second {
		t.Errorf("the frozen QEMU died %v after deadline + destroy-timeout, want 0 to 1s", late)
	}
	for _, v := range []vm{frozen, deaf} {
		v.stopped(t, a, "LauncherSignal", "Forced")
	}
}

func TestTheDeadlineHoldsWithLibvirtdDead(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=4")
	from := v.signal(t)
	v.begun(t)
	n.Libvirtd().Kill()
	v.terminated(t, from, 4*time.Second, 50*ms)
	v.exits(t, 0)
	v.stopped(t, a, "LauncherSignal", "Forced")
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 0 {
		t.Errorf("vmgrace_libvirt_up is %v", up)
	}
}

func TestTheDeadlineHoldsWithLibvirtdDeadAndTheAgentRestarted(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=5")
	resting := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=2")
	from := v.signal(t)
	v.begun(t)
	n.Libvirtd().Kill()
	a.Restart(t)
	fromResting := resting.signal(t) // a shutdown that begins with no libvirtd at all
	resting.terminated(t, fromResting, 2*time.Second, 50*ms)
	v.terminated(t, from, 5*time.Second, 50*ms)
	resting.stopped(t, a, "LauncherSignal", "Forced")
	v.stopped(t, a, "LauncherSignal", "Forced")
}

func TestTheDeadlineHoldsWithLibvirtdFrozen(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=3")
	if err := n.Libvirtd().Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	v.terminated(t, v.signal(t), 3*time.Second, 50*ms)
	if code, took := a.Term(t); code != 0 || took > time.Second {
		t.Errorf("SIGTERM with a frozen libvirtd: exit status %d after %v", code, took)
	}
}

func TestAGuestThatPowersOffWhileLibvirtdRestartsIsGraceful(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := guarded(t, a, n, node.Spec{Behaviour: "slow=3"}, "--grace-period=60")
	v.signal(t)
	node.Eventually(t, soon, func() bool { return v.Presses() > 0 }, "no press")
	n.RestartLibvirtd(t)
	v.stopped(t, a, "LauncherSignal", "Graceful")
}

func TestAShutdownThatBeginsWithoutLibvirtdIsAskedWhenItIsBack(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := guarded(t, a, n, node.Spec{}, "--grace-period=60")
	n.Libvirtd().Kill()
	v.signal(t)
	v.begun(t)
	n.RestartLibvirtd(t)
	v.stopped(t, a, "LauncherSignal", "Graceful")
}

func TestThirtyDeafGuestsWithOneDeadline(t *testing.T) {
	const guests = 30
	a := shared.Agent(t).Start(t)
	stranger := shared.Boot(t, node.Spec{Namespace: "vmgrace-stranger", Firmware: true}) // no launcher directory
	vms := make([]vm, guests)
	for i := range vms {
		vms[i] = guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=4")
	}
	first := time.Now()
	for _, v := range vms {
		v.signal(t)
	}
	var earliest, latest time.Time
	for _, v := range vms {
		deadline := wallTime(t, v.begun(t))
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
		v.stopped(t, a, "LauncherSignal", "Forced")
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
		vms := make([]vm, n)
		for i := range vms {
			vms[i] = guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=0")
		}
		for _, v := range vms {
			v.signal(t)
		}
		for _, v := range vms {
			v.stopped(t, a, "LauncherSignal", "Forced")
			v.exits(t, 0)
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
	// Connections to libvirt that nobody uses are closed after a minute, so
	// there may be fewer descriptors than at first.
	node.Eventually(t, 2*time.Minute, func() bool {
		now = a.Metrics(t)
		return now["go_goroutines"] <= first["go_goroutines"]+more+5 && now["process_open_fds"] <= first["process_open_fds"]
	}, "the agent holds more than the %v goroutines and %v fds of the beginning", first["go_goroutines"], first["process_open_fds"])
}
