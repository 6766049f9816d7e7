package evacuation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// AssumedMigration is how long a migration is assumed to take while none has succeeded.
const AssumedMigration = 20 * time.Second

// reasonNoNode is why a VM is not moved, beside reasonExternal and those of Disrupted.
const reasonNoNode = "NoOtherNode"

// AtRisk is a VM that a NoExecute taint of its node would find.
type AtRisk struct {
	VMI       *kubevirt.VirtualMachineInstance
	Strategy  kubevirt.EvictionStrategy // StrategyOf the VMI
	NodeReady bool                      // the VM's node
	// GraceSeconds is the grace period of its launcher pod, HoldFor, Reserve and Allowance are
	// values of the pod's annotations.
	GraceSeconds                int64
	HoldFor, Reserve, Allowance string
	// OtherNodes is the number of other nodes that are Ready and schedulable.
	OtherNodes int
}

// Stays returns why a NoExecute taint would not have the VM moved, "" if it would.
func (v *AtRisk) Stays(s *Settings) (reason string) {
	mark, reason := Disrupted(&Disruption{
		VMI: v.VMI, Strategy: v.Strategy, NodeReady: v.NodeReady, Deleting: true, Reason: CauseNoExecute, HoldFor: v.HoldFor,
	}, s)
	switch {
	case !mark && reason != reasonMarked:
		return reason
	case v.Strategy == kubevirt.StrategyExternal:
		return reasonExternal
	case v.OtherNodes == 0:
		return reasonNoNode
	}
	return ""
}

// hold returns how long the VM's shutdown is held at most.
func (v *AtRisk) hold() time.Duration {
	deleted := time.Unix(0, 0)
	grace := min(max(v.GraceSeconds, 0), maxGraceSeconds)
	kill := deleted.Add(time.Duration(grace) * time.Second)
	return max(HeldUntil(kill, grace, v.Reserve, v.Allowance).Sub(deleted), 0)
}

// Estimate says what a NoExecute taint would do to the VMs of one node.
type Estimate struct {
	InTime int // would be moved before their shutdowns have to begin
	Late   int // can be moved, but the limits leave no slot in time
	// Stay is the number of VMs that would not be moved, by reason.
	Stay map[string]int
	// Slots is the number of migrations at a time, Hold the shortest time for one. Needed is the
	// number of slots with which none would be late, 0 if there is none.
	Slots, Needed int
	Hold          time.Duration
}

// EstimateOf estimates for the VMs of one node, when a migration takes this long. It assumes
// that all slots are free and that the other nodes have room. The limit of inbound migrations
// does not count, as in Turns.
func (s *Settings) EstimateOf(vms []AtRisk, takes time.Duration) Estimate {
	e := Estimate{Stay: map[string]int{}, Slots: min(s.PerCluster, s.PerNode)}
	if s.Held > 0 {
		e.Slots = s.Held
	}
	var holds []time.Duration
	for i := range vms {
		if reason := vms[i].Stays(s); reason != "" {
			e.Stay[reason]++
		} else {
			holds = append(holds, vms[i].hold())
		}
	}
	if len(holds) == 0 {
		return e
	}
	slices.Sort(holds)
	e.Hold = holds[0]
	e.InTime = inTime(holds, e.Slots, takes)
	e.Late = len(holds) - e.InTime
	e.Needed = slotsFor(holds, takes)
	return e
}

// slotsFor returns the least number of slots with which all migrations succeed in time, 0 if
// there is none.
func slotsFor(holds []time.Duration, takes time.Duration) int {
	if inTime(holds, len(holds), takes) < len(holds) {
		return 0
	}
	less, enough := 0, len(holds)
	for enough-less > 1 {
		if middle := (less + enough) / 2; inTime(holds, middle, takes) == len(holds) {
			enough = middle
		} else {
			less = middle
		}
	}
	return enough
}

// inTime returns how many migrations succeed before their holds end. They begin in the order of
// holds, as in Turns. A migration whose hold ends before has its slot until then.
func inTime(holds []time.Duration, slots int, takes time.Duration) (n int) {
	free := make([]time.Duration, min(slots, len(holds))) // when each slot is free, sorted
	for _, hold := range holds {
		begin := free[0]
		if begin >= hold {
			continue
		}
		ends := min(begin+takes, hold)
		if begin+takes <= hold {
			n++
		}
		at, _ := slices.BinarySearch(free[1:], ends)
		copy(free, free[1:1+at])
		free[at] = ends
	}
	return n
}

// NotMovable returns how many VMs would not be moved.
func (e *Estimate) NotMovable() (n int) {
	for _, count := range e.Stay {
		n += count
	}
	return n
}

// Why returns the reasons with their numbers, as "2 NotHeld, 1 NotMigratable", and "" if all
// VMs can be moved.
func (e *Estimate) Why() string {
	reasons := slices.SortedFunc(maps.Keys(e.Stay), func(a, b string) int {
		return cmp.Or(cmp.Compare(e.Stay[b], e.Stay[a]), cmp.Compare(a, b))
	})
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("%d %s", e.Stay[reason], reason)
	}
	return strings.Join(reasons, ", ")
}

// Advice returns the setting with which no VM would be late.
func (e *Estimate) Advice() string {
	if e.Needed == 0 {
		return "a migration takes longer than spec.migrationAllowance leaves: raise that, for launcher pods that are made later"
	}
	return fmt.Sprintf("spec.parallelHeldMigrations of %d would do", e.Needed)
}

// lastMeasured is how many succeeded migrations MigrationTime looks at.
const lastMeasured = 20

// MigrationTime returns the median of how long the last succeeded migrations have had a slot,
// in whole seconds. Without any it returns AssumedMigration, and false.
func MigrationTime(all []kubevirt.VirtualMachineInstanceMigration) (takes time.Duration, measured bool) {
	type past struct {
		end  time.Time
		took time.Duration
	}
	var last []past
	for i := range all {
		begin, end := all[i].Reached(kubevirt.MigrationScheduling), all[i].Reached(kubevirt.MigrationSucceeded)
		if !begin.IsZero() && !end.IsZero() {
			last = append(last, past{end, max(end.Sub(begin).Round(time.Second), time.Second)})
		}
	}
	if len(last) == 0 {
		return AssumedMigration, false
	}
	slices.SortFunc(last, func(a, b past) int { return b.end.Compare(a.end) })
	last = last[:min(len(last), lastMeasured)]
	slices.SortFunc(last, func(a, b past) int { return cmp.Compare(a.took, b.took) })
	return last[len(last)/2].took, true
}
