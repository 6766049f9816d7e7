package drain

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// Given a VM made anew, and a migration of the former one that has not ended. Then the VM has only its
// own migration.
func TestAFormerVMsMigrationIsNotShown(t *testing.T) {
	v := kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "anew"}}
	var all []kubevirt.VirtualMachineInstanceMigration
	for _, uid := range []string{"anew", "former"} {
		m := kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: uid}, Spec: kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: "vm"}}
		m.Status.MigrationState = &kubevirt.MigrationState{VMIUID: uid}
		all = append(all, m)
	}
	if got := Unfinished([]kubevirt.VirtualMachineInstance{v}, all); len(got) != 1 || got["anew"].Name != "anew" {
		t.Errorf("%+v", got)
	}
}
