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
