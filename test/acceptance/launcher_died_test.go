package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAKilledShimTakesItsVMWithIt(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := guarded(t, a, shared, node.Spec{}, "--grace-period=60")
	from := time.Now()
	v.shim.Kill()
	if took := v.WaitGone(t, soon).Sub(from); took > time.Second {
		t.Errorf("destroyed after %v, want at most 1s", took)
	}
	v.stopped(t, a, "LauncherDied", "Forced")
	if n := v.Presses(); n != 0 {
		t.Errorf("%d presses", n)
	}
}

func TestAShimKilledAsPID1OfItsNamespaceTakesItsVMWithIt(t *testing.T) {
	a := shared.Agent(t).Start(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	l := a.Launcher(t, g)
	v := vm{g, l, l.ShimAsPID1(t, "--grace-period=60", "--", "sleep", "1000")}
	v.waitGuarded(t, a)
	from := time.Now()
	v.shim.Kill()
	if took := v.WaitGone(t, soon).Sub(from); took > time.Second {
		t.Errorf("destroyed after %v, want at most 1s", took)
	}
	v.stopped(t, a, "LauncherDied", "Forced")
}

func TestAShimKilledWhileTheAgentWasDownTakesItsVMWithIt(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=60")
	a.Kill()
	v.shim.Kill()
	node.Never(t, time.Second, v.Gone, "destroyed without an agent")
	returned := time.Now()
	a.Launch(t)
	if took := v.WaitGone(t, soon).Sub(returned); took > time.Second {
		t.Errorf("destroyed %v after the agent's start, want at most 1s", took)
	}
	v.stopped(t, a, "LauncherDied", "Forced")
}

func TestAShimKilledInMidGraceMovesTheDeadlineToNow(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=60")
	v.signal(t)
	v.begun(t)
	from := time.Now()
	v.shim.Kill()
	if took := v.WaitGone(t, soon).Sub(from); took > time.Second {
		t.Errorf("destroyed after %v, want at most 1s", took)
	}
	v.stopped(t, a, "LauncherSignal", "Forced")
}

func TestAnOrderlyEndOfAShimIsNoDeath(t *testing.T) {
	a := shared.Agent(t).Start(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	l := a.Launcher(t, g)
	// The supervisor ends, and with it the shim, in order; QEMU is libvirt's and goes on.
	v := vm{g, l, l.Shim(t, "--grace-period=0", "--", "sh", "-c", "while [ -e "+l.Dir+" ] && ! [ -e "+l.Dir+"/end ]; do sleep 0.1; done; exit 7")}
	v.waitGuarded(t, a)
	l.Write(t, "end", "")
	v.exits(t, 7)
	if l.Has("vm.json") {
		t.Error("vm.json is still there after an orderly end")
	}
	node.Never(t, 2*time.Second, v.Gone, "the VM was destroyed")
	a.Restart(t)
	node.Never(t, 2*time.Second, v.Gone, "the VM was destroyed after the agent's restart")
}

func TestAnOldRegistrationDoesNotHarmALaterVM(t *testing.T) {
	a := shared.Agent(t).Start(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	l := a.Launcher(t, g)
	// Unlocked, and never seen locked beside this instance.
	l.Write(t, "vm.json", fmt.Sprintf(`{"version":1,"namespace":%q,"name":%q,"uid":%q}`, l.Namespace, l.Name, l.UID))
	v := vm{g, l, nil}
	v.waitGuarded(t, a)
	node.Never(t, 2*time.Second, v.Gone, "the VM was destroyed")
	a.Restart(t)
	node.Never(t, 2*time.Second, v.Gone, "the VM was destroyed after the agent's restart")
}

func TestAPidFileOfTheRealQEMUIsWatched(t *testing.T) {
	a := shared.Agent(t).Start(t)
	g := shared.Boot(t, node.Spec{})
	l := a.Launcher(t, g)
	file := filepath.Join(t.TempDir(), "qemu.pid")
	v := vm{g, l, l.Shim(t, "--grace-period=30", "--pid-file="+file)}
	v.waitGuarded(t, a)
	if err := os.WriteFile(file, []byte(strconv.Itoa(g.PID)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	v.signal(t)
	v.exits(t, 0)
	v.stopped(t, a, "LauncherSignal", "Graceful")
}
