package acceptance

import (
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAFrozenQEMUDiesAfterTheDestroyTimeoutAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t, "--destroy-timeout=3s", "--shutdown-retry-interval=1s").Start(t)
	frozen := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=9")
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=9")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=30")
	frozen.Signal(t, syscall.SIGSTOP)

	from := frozen.SignalShim(t)
	fromDeaf := deaf.SignalShim(t)
	polite.SignalShim(t)
	polite.WaitGone(t, soon)
	if frozen.Gone() {
		t.Error("the polite neighbour had to wait for the frozen one")
	}
	deaf.WaitTerminated(t, fromDeaf.Add(9*time.Second), 50*ms)
	frozen.WaitKilled(t, from.Add(12*time.Second), 50*ms)
	for _, v := range []*node.VM{frozen, deaf} {
		v.WaitStopped(t, "LauncherSignal", "Forced")
	}
}

func TestTheDeadlineHoldsWithLibvirtdDead(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3")
	if err := n.Libvirtd().Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	v.WaitTerminated(t, v.SignalShim(t).Add(3*time.Second), 50*ms)
	begin := time.Now()
	code, took := a.Term(t)
	if n.Within(t, time.Second, begin, begin.Add(took), "SIGTERM with a frozen libvirtd: ended"); code != 0 {
		t.Errorf("SIGTERM with a frozen libvirtd: exit status %d", code)
	}
}

func TestAGuestThatPowersOffWhileLibvirtdRestartsIsGraceful(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Behaviour: "slow=3"}, "--grace-period=60")
	v.SignalShim(t)
	node.Eventually(t, soon, func() bool { return v.Presses() > 0 }, "no press")
	n.RestartLibvirtd(t)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestAShutdownThatBeginsWithoutLibvirtdIsAskedWhenItIsBack(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{}, "--grace-period=60")
	n.Libvirtd().Kill()
	v.SignalShim(t)
	v.WaitBegun(t)
	n.RestartLibvirtd(t)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
}
