package acceptance

import (
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

// agentOn starts an agent that delays the shutdown of a machine.
func agentOn(t *testing.T, m *logind.Machine, args ...string) *node.Agent {
	t.Helper()
	a := shared.Agent(t, append([]string{"--dbus-socket=" + m.Socket, "--shutdown-retry-interval=1s"}, args...)...).Start(t)
	waitHeld(t, a)
	return a
}

func waitHeld(t *testing.T, a *node.Agent) {
	t.Helper()
	node.Eventually(t, soon, func() bool { return a.Metrics(t)["vmgrace_node_shutdown_delayed"] == 1 }, "shutdowns are delayed")
}

// waitDown waits until the machine goes down by this command. It fails if that is before
// the last of these VMs has ended, or not soon after it.
func waitDown(t *testing.T, m *logind.Machine, command string, vms ...*node.VM) {
	t.Helper()
	var last time.Time
	left := slices.Clone(vms)
	node.Eventually(t, 2*time.Minute, func() bool {
		ran, at, down := m.Down(t)
		before := len(left)
		left = slices.DeleteFunc(left, func(v *node.VM) bool { return v.Gone() })
		if len(left) < before {
			last = time.Now()
		}
		if !down {
			return false
		}
		if len(left) > 0 || ran != command {
			t.Fatalf("%s ran with %d VMs, want %s", ran, len(left), command)
		}
		// The agent reports each end first. The lateness of three threads is added.
		if after, may := at.Sub(last), 500*ms+3*shared.Late(last, at); after > may {
			t.Errorf("%s ran %v after the last VM was gone, want %v", ran, after, may)
		}
		return true
	}, "%s does not run", command)
}

// Given a node that is powered off with VMs of several kinds. When kubelet signals and
// kills their launchers at the same moment, then that begins no second shutdown, and the
// node goes down once all VMs are gone.
func TestANodeThatIsPoweredOffGoesDownWhenItsVMsAreGone(t *testing.T) {
	m := logind.Start(t, time.Minute)
	a := agentOn(t, m)
	start := func(s node.Spec, grace string) *node.VM { return a.VM(t, shared.Start(t, s), "--grace-period="+grace) }
	polite, slow, paused := start(node.Spec{}, "40"), start(node.Spec{Behaviour: "slow=3"}, "40"), start(node.Spec{}, "40")
	deaf := start(node.Spec{Firmware: true}, "8")
	for _, v := range []*node.VM{polite, slow, paused, deaf} {
		v.WaitUp(t)
		v.WaitGuarded(t)
	}
	paused.Virsh(t, "suspend")
	booting := start(node.Spec{Behaviour: "boot=2"}, "40")
	booting.WaitGuarded(t)

	from := m.Shutdown(t, "PowerOff")
	deaf.SignalShim(t)
	deadline := node.WallTime(t, deaf.WaitBegun(t))
	if got := deadline.Sub(from); got < 8*time.Second || got > 9*time.Second {
		t.Errorf("the deaf guest has %v", got)
	}
	slow.WaitBegun(t)
	slow.Shim.Kill()
	waitDown(t, m, "poweroff", polite, slow, paused, deaf, booting)
	deaf.WaitTerminated(t, deadline, 50*ms)
	polite.WaitOutcome(t, "NodeShutdown", "Graceful")
	slow.WaitOutcome(t, "NodeShutdown", "Graceful")
	paused.WaitOutcome(t, "NodeShutdown", "Graceful")
	booting.WaitOutcome(t, "NodeShutdown", "Graceful")
	// The contract does not say which of the two causes the agent sees first.
	if s := deaf.Launcher.WaitStopped(t, soon); s.Outcome != "Forced" || s.Cause != "NodeShutdown" && s.Cause != "LauncherSignal" {
		t.Errorf("status.json: %+v", s)
	}
}

func TestADeadlineIsCutToWhatLogindLeaves(t *testing.T) {
	m := logind.Start(t, 6*time.Second)
	a := agentOn(t, m, "--destroy-timeout=3s")
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=60")
	// An agent that is started later knows its VM from its start, and warns at once.
	a.Restart(t)
	waitHeld(t, a)
	a.WaitSaid(t, "a reboot of this node would cut grace periods short", 1)
	samples := a.Metrics(t)
	if samples["vmgrace_node_shutdown_delay_seconds"] != 6 || samples["vmgrace_node_shutdown_needed_seconds"] != 63 {
		t.Errorf("metrics: %v", samples)
	}

	from := m.Shutdown(t, "Reboot")
	deadline := node.WallTime(t, deaf.WaitBegun(t))
	if got := deadline.Sub(from); got < 3*time.Second-ms || got > 4*time.Second {
		t.Errorf("it has %v, want 3 s and 3 s more for QEMU", got)
	}
	waitDown(t, m, "reboot", deaf)
	deaf.WaitTerminated(t, deadline, 50*ms)
	deaf.WaitOutcome(t, "NodeShutdown", "Forced")
	a.WaitSaid(t, "the node goes down before the VM's deadline", 1)
	if got := a.Metrics(t)[`vmgrace_rejected_total{reason="node_shutdown_delay"}`]; got != 1 {
		t.Errorf("counted %v times", got)
	}
}

// Given a node's shutdown and an agent that is killed. When the next agents start, then
// they go on with the shutdown and its deadline. Another program's inhibitor delays the
// machine meanwhile, because the agent's ends with the agent.
func TestTheNextAgentGoesOnWithTheNodesShutdown(t *testing.T) {
	m := logind.Start(t, time.Minute)
	a := agentOn(t, m)
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=6")
	other := m.Inhibit(t, "kubelet")
	defer other.Close()

	m.Shutdown(t, "PowerOff")
	deadline := deaf.WaitBegun(t)
	a.Kill()
	deaf.Shim.Kill()
	a.Start(t)
	if code, took := a.Term(t); code != 0 || took > time.Second+3*shared.Late(time.Now().Add(-took), time.Now()) {
		t.Errorf("SIGTERM: exit status %d after %v", code, took)
	}
	a.Start(t)
	if !m.Preparing(t) {
		t.Fatal("the machine does not shut down any more")
	}
	if _, _, down := m.Down(t); down {
		t.Fatal("the machine is down in spite of the other inhibitor")
	}
	if again := deaf.Launcher.Status().Deadline; again != deadline {
		t.Errorf("the deadline was %s and is %s", deadline, again)
	}
	deaf.WaitTerminated(t, node.WallTime(t, deadline), 50*ms)
	deaf.WaitOutcome(t, "NodeShutdown", "Forced")
	_ = other.Close()
	node.Eventually(t, soon, func() bool { _, _, down := m.Down(t); return down }, "the machine goes down")
}

// Given a node's shutdown that is called off, because logind restarts and has forgotten it.
// Then only the guests that were asked end, and the next shutdown of the node is delayed
// again.
func TestAShutdownThatIsCalledOffEndsOnlyTheGuestsThatWereAsked(t *testing.T) {
	m := logind.Start(t, time.Minute)
	a := agentOn(t, m)
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=5")
	m.Shutdown(t, "PowerOff")
	deadline := node.WallTime(t, deaf.WaitBegun(t))
	deaf.Shim.Kill()
	m.StopLogind()
	m.StartLogind(t)
	a.WaitSaid(t, "the node's shutdown is called off", 1)
	next := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=2")
	deaf.WaitTerminated(t, deadline, 50*ms)
	deaf.WaitOutcome(t, "NodeShutdown", "Forced")

	// The agent delays the next shutdown like the first one, even after the bus was away.
	m.StopBus()
	node.Eventually(t, soon, func() bool { return a.Said("the connection to the system bus has ended") == 1 }, "the bus is missed")
	m.StopLogind()
	m.StartBus(t)
	m.StartLogind(t)
	a.WaitSaid(t, "shutdowns of this node are delayed", 3)
	if next.Gone() || next.Launcher.Status().Phase != "Running" {
		t.Fatalf("a VM that was not asked is %+v", next.Launcher.Status())
	}
	m.Shutdown(t, "Halt")
	waitDown(t, m, "halt", next)
	next.WaitOutcome(t, "NodeShutdown", "Forced")
}
