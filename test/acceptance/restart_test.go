package acceptance

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAnAgentKilledInMidGraceKeepsTheDeadline(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=6")
	from := v.SignalShim(t)
	deadline := v.WaitBegun(t)
	a.Restart(t)
	node.Eventually(t, soon, func() bool { s, ok := a.StatusOf(t, v.Guest); return ok && s.Deadline == deadline }, "the record says another deadline")
	v.WaitTerminated(t, from.Add(6*time.Second), 50*ms)
	v.WaitStopped(t, "LauncherSignal", "Forced")
	if got := v.Launcher.Status().Deadline; got != deadline {
		t.Errorf("the deadline was %s and is now %s", deadline, got)
	}
	if n := a.Metrics(t)["vmgrace_recovered_records_total"]; n != 1 {
		t.Errorf("%v recovered records, want 1", n)
	}
}

func TestAnAgentThatWasDeadAtTheDeadlineDestroysOnItsReturn(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=2")
	v.SignalShim(t)
	deadline := node.WallTime(t, v.WaitBegun(t))
	a.Kill()
	node.Eventually(t, soon, func() bool { return time.Now().After(deadline.Add(time.Second)) }, "the deadline does not pass")
	if v.Gone() {
		t.Fatal("destroyed without an agent")
	}
	returned := time.Now()
	a.Launch(t)
	shared.Within(t, time.Second, returned, v.WaitGone(t, soon), "destroyed, from the start,")
	v.WaitStopped(t, "LauncherSignal", "Forced")
}

func TestATriggerWrittenWhileTheAgentWasDownIsFound(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{}, "--grace-period=30")
	a.Kill()
	v.SignalShim(t)
	node.Eventually(t, soon, func() bool { return v.Launcher.Has("shutdown") }, "no trigger")
	a.Start(t)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestSIGTERMToTheAgentLeavesVMsAlone(t *testing.T) {
	a := shared.Agent(t).Start(t)
	resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=30")
	ending := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=5")
	from := ending.SignalShim(t)
	ending.WaitBegun(t)
	begin := time.Now()
	code, took := a.Term(t)
	if shared.Within(t, time.Second, begin, begin.Add(took), "ended"); code != 0 {
		t.Errorf("exit status %d", code)
	}
	node.Never(t, time.Second, func() bool { return resting.Gone() || ending.Gone() }, "a VM ended with the agent")
	a.Start(t)
	ending.WaitTerminated(t, from.Add(5*time.Second), 50*ms)
	if resting.Gone() {
		t.Error("the VM at rest is gone")
	}
}

func TestASecondAgentOnTheSameStateDirectorySaysSo(t *testing.T) {
	a := shared.Agent(t).Start(t)
	second := shared.Agent(t, "--state-dir="+a.StateDir, "--launchers-dir="+a.LaunchersDir)
	second.Launch(t)
	if code, ok := second.Exited(soon); !ok || code != 1 {
		t.Errorf("exit status %d (ended: %v), want 1\n%s", code, ok, second.Log())
	}
}

func TestADryRunDoesNothingAndBindsNobody(t *testing.T) {
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
	s, _ := v.Terminated()
	if !s.At.After(deadline.Add(2 * time.Second)) {
		t.Errorf("the real agent took over the dry run's deadline")
	}
	v.WaitStopped(t, "LauncherSignal", "Forced")
}
