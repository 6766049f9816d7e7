package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// hears bounds how long an emulated guest takes to notice the power button and to end.
const hears = 500 * time.Millisecond

func TestAHungGuestAgentLeavesFiveOfTenSecondsToACPI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	hung := a.Guarded(t, node.Spec{GuestAgent: true, Behaviour: "deaf agent=hung"}, "--grace-period=10")
	from := hung.SignalShim(t)
	node.Eventually(t, soon, func() bool { return hung.Presses() > 0 || hung.Gone() }, "ACPI is not tried")
	n.Within(t, 5*time.Second+hears, from, time.Now(), "ACPI was tried")
	if hung.Gone() {
		t.Error("the guest is gone: ACPI was not tried")
	}
	hung.WaitTerminated(t, from.Add(10*time.Second), late)
	hung.WaitStopped(t, "LauncherSignal", "Forced")
}

func TestAHungGuestAgentAndAKilledNodeAgentLeaveTimeForACPI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	hung := a.Guarded(t, node.Spec{GuestAgent: true, Behaviour: "agent=hung"}, "--grace-period=20")
	from := hung.SignalShim(t)
	hung.WaitBegun(t)
	a.Restart(t) // libvirt keeps waiting for the guest agent, for a minute
	n.Within(t, 10*time.Second+hears, from, hung.WaitGone(t, soon), "the guest heard of it")
	hung.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestAGuestAgentThatIsAbsentCostsNoTime(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	absent := a.Guarded(t, node.Spec{GuestAgent: true}, "--grace-period=60") // a channel without a guest agent
	control := a.Guarded(t, node.Spec{}, "--grace-period=60")                // no channel
	fromControl := control.SignalShim(t)
	usual := control.WaitGone(t, soon).Sub(fromControl)
	from := absent.SignalShim(t)
	n.Within(t, usual+hears, from, absent.WaitGone(t, soon), "a guest with a channel is off") // a wait for the guest agent takes 5 s
	absent.WaitStopped(t, "LauncherSignal", "Graceful")
	if strings.Contains(absent.Serial(), "agent shutdown") {
		t.Error("there is a guest agent: this tests nothing")
	}
}
