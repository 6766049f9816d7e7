package acceptance

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAnAgentKilledInMidGraceKeepsTheDeadline(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=6")
	from := v.signal(t)
	deadline := v.begun(t)
	a.Restart(t)
	node.Eventually(t, soon, func() bool { s, ok := a.StatusOf(t, v.Guest); return ok && s.Deadline == deadline }, "the record says another deadline")
	v.terminated(t, from, 6*time.Second, 50*ms)
	v.stopped(t, a, "LauncherSignal", "Forced")
	if got := v.launcher.Status().Deadline; got != deadline {
		t.Errorf("the deadline was %s and is now %s", deadline, got)
	}
	if n := a.Metrics(t)["vmgrace_recovered_records_total"]; n != 1 {
		t.Errorf("%v recovered records, want 1", n)
	}
}

func TestAnAgentThatWasDeadAtTheDeadlineDestroysOnItsReturn(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=2")
	v.signal(t)
	deadline := wallTime(t, v.begun(t))
	a.Kill()
	node.Eventually(t, soon, func() bool { return time.Now().After(deadline.Add(time.Second)) }, "the deadline does not pass")
	if v.Gone() {
		t.Fatal("destroyed without an agent")
	}
	returned := time.Now()
	a.Launch(t)
	if took := v.WaitGone(t, soon).Sub(returned); took > time.Second {
		t.Errorf("destroyed %v after the start, want at most 1s", took)
	}
	v.stopped(t, a, "LauncherSignal", "Forced")
}

func TestATriggerWrittenWhileTheAgentWasDownIsFound(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := guarded(t, a, shared, node.Spec{}, "--grace-period=30")
	a.Kill()
	v.signal(t)
	node.Eventually(t, soon, func() bool { return v.launcher.Has("shutdown") }, "no trigger")
	a.Start(t)
	v.stopped(t, a, "LauncherSignal", "Graceful")
}

func TestSIGTERMToTheAgentLeavesVMsAlone(t *testing.T) {
	a := shared.Agent(t).Start(t)
	resting := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=30")
	ending := guarded(t, a, shared, node.Spec{Firmware: true}, "--grace-period=5")
	from := ending.signal(t)
	ending.begun(t)
	if code, took := a.Term(t); code != 0 || took > time.Second {
		t.Errorf("exit status %d after %v, want 0 within 1s", code, took)
	}
	node.Never(t, time.Second, func() bool { return resting.Gone() || ending.Gone() }, "a VM ended with the agent")
	a.Start(t)
	ending.terminated(t, from, 5*time.Second, 50*ms)
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
	v := guarded(t, a, shared, node.Spec{Behaviour: "deaf"}, "--grace-period=1")
	v.signal(t)
	deadline := wallTime(t, v.begun(t))
	node.Never(t, 2*time.Second, v.Gone, "a dry run destroyed the VM")
	if n := v.Presses(); n != 0 {
		t.Errorf("%d presses in a dry run", n)
	}
	a.Kill()
	earnest := shared.Agent(t, "--state-dir="+a.StateDir, "--launchers-dir="+a.LaunchersDir).Start(t)
	v.WaitGone(t, soon)
	s, _ := v.Terminated()
	if !s.At.After(deadline.Add(2 * time.Second)) {
		t.Errorf("the real agent took over the dry run's deadline")
	}
	v.stopped(t, earnest, "LauncherSignal", "Forced")
}
