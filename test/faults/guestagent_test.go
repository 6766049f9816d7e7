package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAHungGuestAgentLeavesFiveOfTenSecondsToACPI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	hung := a.Guarded(t, node.Spec{GuestAgent: true, Behaviour: "deaf agent=hung"}, "--grace-period=10")
	from := hung.SignalShim(t)
	node.Eventually(t, soon, func() bool { return hung.Presses() > 0 || hung.Gone() }, "ACPI is not tried")
	if took := time.Since(from); hung.Gone() || took > 5*time.Second+late {
		t.Errorf("ACPI was tried after %v", took)
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
	a.Restart(t) // libvirt goes on waiting for the guest agent, for a minute
	hung.WaitGone(t, soon)
	if took := time.Since(from); took > 10*time.Second+late {
		t.Errorf("the guest heard of it after %v", took)
	}
	hung.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestAGuestAgentThatIsAbsentCostsNoTime(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	absent := a.Guarded(t, node.Spec{GuestAgent: true}, "--grace-period=60") // a channel, and nobody there
	control := a.Guarded(t, node.Spec{}, "--grace-period=60")                // not even a channel
	fromControl := control.SignalShim(t)
	usual := control.WaitGone(t, soon).Sub(fromControl)
	from := absent.SignalShim(t)
	if took := absent.WaitGone(t, soon).Sub(from); took > usual+late {
		t.Errorf("took %v, without a channel %v", took, usual)
	}
	absent.WaitStopped(t, "LauncherSignal", "Graceful")
	if strings.Contains(absent.Serial(), "agent shutdown") {
		t.Error("there is a guest agent: this tests nothing")
	}
}
