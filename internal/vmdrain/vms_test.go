package vmdrain

import (
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// A drain waits for a VM that is to be moved, and not for one that nobody moves any more.
func TestAVMThatNobodyMovesIsNotWaitedFor(t *testing.T) {
	for reason, stuck := range map[string]bool{"NotMigratable": true, "NotMigrated": true, "Stuck": true, "Migrating": false, "Backoff": false, "ShuttingDown": false} {
		v := &kubevirt.VirtualMachineInstance{}
		v.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionTrue, Reason: reason, Message: "why"}}
		if got := vm(v, nil); (got.Stuck == "why") != stuck || (got.Progress == "why") == stuck {
			t.Errorf("%s: stuck %q, progress %q", reason, got.Stuck, got.Progress)
		}
	}
}
