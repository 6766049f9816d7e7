package acceptance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAKilledShimTakesItsVMWithIt(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{}, "--grace-period=60")
	from := time.Now()
	v.Shim.Kill()
	shared.Within(t, time.Second, from, v.WaitGone(t, soon), "destroyed")
	v.WaitStopped(t, "LauncherDied", "Forced")
	if n := v.Presses(); n != 0 {
		t.Errorf("%d presses", n)
	}
}

func TestAShimKilledWhileTheAgentWasDownTakesItsVMWithIt(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=60")
	a.Kill()
	v.Shim.Kill()
	node.Never(t, time.Second, v.Gone, "destroyed without an agent")
	returned := time.Now()
	a.Launch(t)
	shared.Within(t, time.Second, returned, v.WaitGone(t, soon), "destroyed, from the agent's start,")
	v.WaitStopped(t, "LauncherDied", "Forced")
}

func TestAShimKilledInMidGraceMovesTheDeadlineToNow(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=60")
	v.SignalShim(t)
	v.WaitBegun(t)
	from := time.Now()
	v.Shim.Kill()
	shared.Within(t, time.Second, from, v.WaitGone(t, soon), "destroyed")
	v.WaitStopped(t, "LauncherSignal", "Forced")
}

func TestAnOrderlyEndOfAShimIsNoDeath(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	l := a.Launcher(t, g)
	// The supervisor ends in order, and the shim with it. QEMU is libvirt's and runs on.
	v := &node.VM{Guest: g, Agent: a, Launcher: l, Shim: l.Shim(t, "--grace-period=0", "--", "sh", "-c", "while [ -e "+l.Dir+" ] && ! [ -e "+l.Dir+"/end ]; do sleep 0.1; done; exit 7")}
	v.WaitGuarded(t)
	l.Write(t, "end", "")
	v.WaitExit(t, 7)
	if l.Has("vm.json") {
		t.Error("vm.json is still there after an orderly end")
	}
	node.Never(t, 2*time.Second, v.Gone, "the VM was destroyed")
	a.Restart(t)
	node.Never(t, 2*time.Second, v.Gone, "the VM was destroyed after the agent's restart")
}

func TestALauncherStartedAgainInPlaceTakesItsVMWithIt(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=60")
	a.Kill()
	v.Shim.Kill()
	again := v.Launcher.Shim(t, fmt.Sprintf("--pid=%d", v.PID), "--grace-period=60")
	v.WaitRegistered(t)
	node.Eventually(t, soon, func() bool { return strings.Contains(again.Log(), "registered") }, "the next shim does not register")
	a.Start(t)
	v.WaitGone(t, soon)
	v.WaitOutcome(t, "LauncherDied", "Forced")
}
