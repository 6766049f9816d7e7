package evacuation_test

import (
	"fmt"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// A drain evicts the launcher of a VM that can be live-migrated.
func ExampleAdmit() {
	migrate := kubevirt.StrategyLiveMigrate
	vmi := &kubevirt.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "default", "vm1", "6a1b0c9e"
	vmi.Spec.EvictionStrategy = &migrate
	vmi.Status.NodeName = "node-a"
	vmi.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}}
	pod := &evacuation.Pod{Launcher: true, Node: "node-a", VMI: "vm1", VMIUID: "6a1b0c9e"}
	answer := evacuation.Admit(pod, vmi, kubevirt.StrategyNone)
	fmt.Println(answer.Verdict)
	fmt.Println(answer.Message)
	// Output:
	// marked
	// Eviction triggered evacuation of VMI "default/vm1"
}
