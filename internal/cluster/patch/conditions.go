package patch

import (
	"slices"
	"strconv"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Wanted is a condition that a VMI should have. If Is is nil, it should have none of this
// type.
type Wanted struct {
	Type string
	Is   *kubevirt.Condition
}

// Conditions returns the steps that change the VMI's conditions to the wanted ones. There
// are none for differences in times only. Other conditions, and unknown fields, stay as
// they are.
func Conditions(vmi *kubevirt.VirtualMachineInstance, all ...Wanted) (steps []Operation) {
	var removed []int
	none := len(vmi.Status.Conditions) == 0
	for _, want := range all {
		at := slices.IndexFunc(vmi.Status.Conditions, func(has kubevirt.Condition) bool { return has.Type == want.Type })
		switch {
		case want.Is == nil && at >= 0:
			removed = append(removed, at)
		case want.Is == nil:
		case at >= 0:
			if have := &vmi.Status.Conditions[at]; have.Status != want.Is.Status || have.Reason != want.Is.Reason || have.Message != want.Is.Message {
				steps = append(steps, Operation{Op: "replace", Path: "/status/conditions/" + strconv.Itoa(at), Value: want.Is})
			}
		case none:
			none = false
			steps = append(steps, Operation{Op: "add", Path: "/status/conditions", Value: []*kubevirt.Condition{want.Is}})
		default:
			steps = append(steps, Operation{Op: "add", Path: "/status/conditions/-", Value: want.Is})
		}
	}
	slices.Sort(removed)
	for _, at := range slices.Backward(removed) { // the last first: removing one shifts those after it
		steps = append(steps, Operation{Op: "remove", Path: "/status/conditions/" + strconv.Itoa(at)})
	}
	return steps
}
