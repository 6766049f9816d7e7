package faults

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given two nodes with an agent each, and a VM in its grace period. When somebody who does
// not know of the shutdown migrates the VM to the other node, then it lives on there.
func TestAVMThatMigratesAwayInMidGraceIsLostHereAndLivesOnThere(t *testing.T) {
	t.Parallel()
	here, there := node.New(t), node.New(t)
	a, b := here.Agent(t).Start(t), there.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=20")
	v.SignalShim(t)
	deadline := v.WaitBegun(t)
	// When
	v.Virsh(t, "migrate", "--live", there.URI(), "--migrateuri", "unix://"+filepath.Join(here.Dir, "migration"))
	arrived := running(t, there, v.Domain)
	// Then its QEMU here has ended, and not by the agent.
	v.WaitStopped(t, "LauncherSignal", "Lost")
	v.WaitExit(t, 0)
	if s, ok := v.Terminated(); ok && s.PID != here.Libvirtd().PID() {
		t.Errorf("the one here was signalled by %+v, not by its libvirtd", s)
	}
	for name, count := range a.Metrics(t) {
		if strings.HasPrefix(name, "vmgrace_destroys_total") && count != 0 {
			t.Errorf("%s is %v", name, count)
		}
	}
	// And the other agent guards it there at rest, long after the deadline here.
	l := b.Launcher(t, v.Guest)
	shim := l.Shim(t, "--pid="+strconv.Itoa(arrived.pid), "--grace-period=60")
	arrived.leftAlone(t, b, node.WallTime(t, deadline).Add(5*time.Second))
	if state := there.Virsh(t, "domstate", v.Domain); state != "running" || !shim.Running() {
		t.Errorf("there it is %s, its shim runs: %v", state, shim.Running())
	}
	if left := a.Status(t); len(left) != 0 {
		t.Errorf("records are left where it came from: %+v", left)
	}
}
