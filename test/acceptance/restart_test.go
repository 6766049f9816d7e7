package acceptance

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAnAgentThatWasDeadAtTheDeadlineDestroysOnItsReturn(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	vms := ofBothKinds(t, a, node.Spec{Firmware: true}, "--grace-period=2")
	var deadline time.Time
	for _, v := range vms {
		v.SignalShim(t)
		deadline = node.WallTime(t, v.WaitBegun(t))
	}
	a.Kill()
	node.Eventually(t, soon, func() bool { return time.Now().After(deadline.Add(time.Second)) }, "the deadline does not pass")
	if vms[0].Gone() || vms[1].Gone() {
		t.Fatal("destroyed without an agent")
	}
	returned := time.Now()
	a.Launch(t)
	for _, v := range vms {
		shared.Within(t, time.Second, returned, v.WaitGone(t, soon), "destroyed, from the start,")
	}
	for _, v := range vms {
		v.WaitStopped(t, "LauncherSignal", "Forced")
	}
}

func TestSIGTERMToTheAgentLeavesVMsAlone(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	resting := ofBothKinds(t, a, node.Spec{Firmware: true}, "--grace-period=30")
	ending := ofBothKinds(t, a, node.Spec{Firmware: true}, "--grace-period=5")
	var from []time.Time
	for _, v := range ending {
		from = append(from, v.SignalShim(t))
		v.WaitBegun(t)
	}
	gone := func(v *node.VM) bool { return v.Gone() }
	begin := time.Now()
	code, took := a.Term(t)
	if shared.Within(t, time.Second, begin, begin.Add(took), "ended"); code != 0 {
		t.Errorf("exit status %d", code)
	}
	node.Never(t, time.Second, func() bool { return slices.ContainsFunc(slices.Concat(resting, ending), gone) }, "a VM ended with the agent")
	a.Start(t)
	for i, v := range ending {
		v.WaitTerminated(t, from[i].Add(5*time.Second), 50*ms)
	}
	if slices.ContainsFunc(resting, gone) {
		t.Error("a VM at rest is gone")
	}
}

func TestASecondAgentOnTheSameStateDirectorySaysSo(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t).Start(t)
	second := shared.Agent(t, "--state-dir="+a.StateDir, "--launchers-dir="+a.LaunchersDir)
	second.Launch(t)
	if code, ok := second.Exited(soon); !ok || code != 1 {
		t.Errorf("exit status %d (ended: %v), want 1\n%s", code, ok, second.Log())
	}
}

func TestADryRunDoesNothingAndBindsNobody(t *testing.T) {
	t.Parallel()
	a := shared.Agent(t, "--dry-run").Start(t)
	v := a.Guarded(t, node.Spec{Behaviour: "deaf"}, "--grace-period=1")
	v.SignalShim(t)
	deadline := node.WallTime(t, v.WaitBegun(t))
	node.Never(t, 2*time.Second, v.Gone, "a dry run destroyed the VM")
	if n := v.Presses(); n != 0 {
		t.Errorf("%d presses in a dry run", n)
	}
	a.Kill()
	shared.Agent(t, "--state-dir="+a.StateDir, "--launchers-dir="+a.LaunchersDir).Start(t)
	v.WaitGone(t, soon)
	if sent, ok := v.Sent(t, unix.SIGTERM); !ok || !sent.After(deadline.Add(2*time.Second)) {
		t.Errorf("the real agent took over the dry run's deadline")
	}
	v.WaitStopped(t, "LauncherSignal", "Forced")
}
