//go:build nightly

package faults

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given VMs of a virtqemud in their pod, as in KubeVirt's launchers. When their shims are
// signalled, then the guests are asked by a command, and a deaf one ends at its deadline.
// Debian has no package of virtqemud: make virtqemud builds it.
func TestAVirtqemudOfThePodsOwnIsAskedByACommand(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t, "--libvirt-uri=").Start(t)
	polite := a.InOwnLibvirt(t, node.Virtqemud(t), node.Spec{}, "--grace-period=30")
	deaf := a.InOwnLibvirt(t, node.Virtqemud(t), node.Spec{Behaviour: "deaf"}, "--grace-period=5")
	polite.SignalShim(t)
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
	polite.WaitExit(t, 0)
	if n := polite.Presses(); n != 1 {
		t.Errorf("%d presses of the power button, want 1", n)
	}
	deaf.SignalShim(t)
	onTime(t, deaf, deaf.WaitBegun(t))
	deaf.WaitStopped(t, "LauncherSignal", "Forced")
}
