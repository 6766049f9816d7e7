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
func TestShimsThatAreSignalledWhileTheAgentIsAwayForMinutesLoseNothing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	known := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=10")
	polite := guarded(t, a, n, node.Spec{}, "--grace-period=600")
	resting := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=1")
	a.Kill()
	left := time.Now()
	// These two no agent has ever seen; the shim of one cannot see its VM.
	young := launch(t, a, n, node.Spec{Firmware: true}, "--grace-period=10")
	blind := launch(t, a, n, node.Spec{Firmware: true}, "--grace-period=10", "--pid=", "--pid-file="+filepath.Join(t.TempDir(), "never"))

	signalled := []vm{known, polite, young, blind}
	for _, v := range signalled {
		v.signal(t)
		node.Eventually(t, soon, func() bool { return v.launcher.Has("shutdown") }, "no trigger of %s", v.Domain)
	}
	for _, v := range signalled[1:] { // kubelet may ask again
		if err := v.shim.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	passes(t, left.Add(away))
	for _, v := range append(signalled, resting) {
		if v.Gone() || !v.shim.Running() {
			t.Errorf("%s: QEMU ended: %v, the shim runs: %v", v.Domain, v.Gone(), v.shim.Running())
		}
	}

	back := time.Now()
	a.Start(t)
	for _, v := range []vm{known, young, blind} {
		// The start of the agent, and one grace period from there.
		deadline := v.begun(t)
		onTime(t, v, deadline)
		v.terminated(t, back, 10*time.Second, 2*time.Second)
		v.stopped(t, a, "LauncherSignal", "Forced")
		v.exits(t, 0)
	}
	polite.stopped(t, a, "LauncherSignal", "Graceful")
	polite.exits(t, 0)
	if s, ok := a.StatusOf(t, resting.Guest); !ok || s.Phase != "Running" || resting.Gone() {
		t.Errorf("the VM at rest: %+v, %v", s, ok)
	}
}

// A VM that ends while nobody is there to say so: the shim sees it itself.
func TestAShimWhoseVMEndsWhileTheAgentIsAwayEndsWithIt(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=600")
	a.Kill()
	v.signal(t)
	node.Eventually(t, soon, func() bool { return v.launcher.Has("shutdown") }, "no trigger")
	v.Virsh(t, "destroy")
	v.exits(t, 0)
	a.Start(t)
	v.stopped(t, a, "", "Lost") // before anybody knew of a cause
}
