package faults

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// away is longer than every timeout of the agent and the shim.
const away = 130 * time.Second

// Given an agent that is away for 130 s, as after a failed upgrade or on a node that cannot
// get its image. When shims are signalled meanwhile, then no VM ends before the agent is
// back, and no signal is lost: each of these VMs then gets its whole grace period.
func TestShimsSignalledWhileTheAgentIsAwayLoseNothing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	known := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=10")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=600")
	resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=1")
	a.Kill()
	left := time.Now()
	// No agent has ever seen these two VMs, and the shim of one cannot see its VM.
	young := a.VM(t, n.Boot(t, node.Spec{Firmware: true}), "--grace-period=10")
	blind := a.VM(t, n.Boot(t, node.Spec{Firmware: true}), "--grace-period=10", "--pid=", "--pid-file="+filepath.Join(t.TempDir(), "never"))
	young.WaitRegistered(t)
	blind.WaitRegistered(t)

	signalled := []*node.VM{known, polite, young, blind}
	for _, v := range signalled {
		v.SignalShim(t)
		node.Eventually(t, soon, func() bool { return v.Launcher.Has("shutdown") }, "no trigger of %s", v.Domain)
	}
	for _, v := range signalled[1:] { // kubelet may signal again
		if err := v.Shim.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	node.WaitUntil(t, left.Add(away))
	for _, v := range append(signalled, resting) {
		if v.Gone() || !v.Shim.Running() {
			t.Errorf("%s: QEMU ended: %v, the shim runs: %v", v.Domain, v.Gone(), v.Shim.Running())
		}
	}

	back := time.Now()
	a.Start(t)
	ready := time.Now()
	for _, v := range []*node.VM{known, young, blind} {
		// The deadline is one grace period after the start of the agent.
		deadline := v.WaitBegun(t)
		if at := node.WallTime(t, deadline); at.Before(back.Add(10*time.Second)) || at.After(ready.Add(10*time.Second+late+2*n.Late(back, ready.Add(time.Second)))) {
			t.Errorf("%s: the deadline is %v after the start of the agent, which was ready after %v", v.Domain, at.Sub(back), ready.Sub(back))
		}
		onTime(t, v, deadline)
		v.WaitStopped(t, "LauncherSignal", "Forced")
		v.WaitExit(t, 0)
	}
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
	polite.WaitExit(t, 0)
	if s, ok := a.StatusOf(t, resting.Guest); !ok || s.Phase != "Running" || resting.Gone() {
		t.Errorf("the VM at rest: %+v, %v", s, ok)
	}
}

// Given a signalled shim and no agent. When the VM ends, then the shim sees this itself and
// ends too.
func TestAShimWhoseVMEndsWhileTheAgentIsAwayEndsWithIt(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=600")
	a.Kill()
	v.SignalShim(t)
	node.Eventually(t, soon, func() bool { return v.Launcher.Has("shutdown") }, "no trigger")
	v.Virsh(t, "destroy")
	v.WaitExit(t, 0)
	a.Start(t)
	v.WaitStopped(t, "LauncherSignal", "AlreadyStopped") // the VM was off when the agent saw the trigger
}
