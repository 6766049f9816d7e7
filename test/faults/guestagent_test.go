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
	hung := guarded(t, a, n, node.Spec{GuestAgent: true, Behaviour: "deaf agent=hung"}, "--grace-period=10")
	from := hung.signal(t)
	node.Eventually(t, soon, func() bool { return hung.Presses() > 0 || hung.Gone() }, "ACPI is not tried")
	if took := time.Since(from); hung.Gone() || took > 5*time.Second+late {
		t.Errorf("ACPI was tried after %v", took)
	}
	hung.terminated(t, from, 10*time.Second, late)
	hung.stopped(t, a, "LauncherSignal", "Forced")
}

func TestAHungGuestAgentAndAKilledNodeAgentLeaveTimeForACPI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	hung := guarded(t, a, n, node.Spec{GuestAgent: true, Behaviour: "agent=hung"}, "--grace-period=20")
	from := hung.signal(t)
	hung.begun(t)
	a.Restart(t) // libvirt goes on waiting for the guest agent, for a minute
	hung.WaitGone(t, soon)
	if took := time.Since(from); took > 10*time.Second+late {
		t.Errorf("the guest heard of it after %v", took)
	}
	hung.stopped(t, a, "LauncherSignal", "Graceful")
}

func TestAGuestAgentThatIsAbsentCostsNoTime(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	absent := guarded(t, a, n, node.Spec{GuestAgent: true}, "--grace-period=60") // a channel, and nobody there
	control := guarded(t, a, n, node.Spec{}, "--grace-period=60")                // not even a channel
	fromControl := control.signal(t)
	usual := control.WaitGone(t, soon).Sub(fromControl)
	from := absent.signal(t)
	if took := absent.WaitGone(t, soon).Sub(from); took > usual+late {
		t.Errorf("took %v, without a channel %v", took, usual)
	}
	absent.stopped(t, a, "LauncherSignal", "Graceful")
	if strings.Contains(absent.Serial(), "agent shutdown") {
		t.Error("there is a guest agent: this tests nothing")
	}
}
