package faults

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// away is longer than anything that agent or shim wait for of their own accord.
const away = 130 * time.Second

// An agent that is upgraded badly, or whose node is out of images.
func TestShimsSignalledWhileTheAgentIsAwayLoseNothing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	known := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=10")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=600")
	resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=1")
	a.Kill()
	left := time.Now()
	// These two no agent has ever seen; the shim of one cannot see its VM.
	young := a.VM(t, n.Boot(t, node.Spec{Firmware: true}), "--grace-period=10")
	blind := a.VM(t, n.Boot(t, node.Spec{Firmware: true}), "--grace-period=10", "--pid=", "--pid-file="+filepath.Join(t.TempDir(), "never"))
	young.WaitRegistered(t)
	blind.WaitRegistered(t)

	signalled := []*node.VM{known, polite, young, blind}
	for _, v := range signalled {
		v.SignalShim(t)
		node.Eventually(t, soon, func() bool { return v.Launcher.Has("shutdown") }, "no trigger of %s", v.Domain)
	}
	for _, v := range signalled[1:] { // kubelet may ask again
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
		// The start of the agent, and one grace period from there.
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

// A VM that ends while nobody is there to say so: the shim sees it itself.
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
	v.WaitStopped(t, "LauncherSignal", "AlreadyStopped") // it was off when the agent saw the signal
}

// KubeVirt's launchers run virtqemud, which no package of Debian has: make virtqemud.
func TestAVirtqemudOfThePodsOwnIsAskedByACommand(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t, "--libvirt-uri=").Start(t)
	polite := a.InOwnLibvirt(t, node.Virtqemud(t), node.Spec{}, "--grace-period=30")
	deaf := a.InOwnLibvirt(t, node.Virtqemud(t), node.Spec{Behaviour: "deaf"}, "--grace-period=5")
	polite.SignalShim(t)
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
	polite.WaitExit(t, 0)
	if n := polite.Presses(); n != 1 {
		t.Errorf("%d presses of the power button, want 1", n)
	}
	deaf.SignalShim(t)
	onTime(t, deaf, deaf.WaitBegun(t))
	deaf.WaitStopped(t, "LauncherSignal", "Forced")
}
