package evacuation

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// atRisk returns n VMs that a taint would have moved, with the annotations and the grace
// period that the launcher webhook gives their launchers.
func atRisk(n int, s *Settings, change ...func(*AtRisk)) []AtRisk {
	all := make([]AtRisk, n)
	for i := range all {
		v := vmi(migratable)
		v.Spec.EvictionStrategy = new(kubevirt.StrategyLiveMigrate)
		g := GraceFor(v, nil, s)
		all[i] = AtRisk{
			VMI: v, Strategy: kubevirt.StrategyLiveMigrate, NodeReady: true, OtherNodes: 3, GraceSeconds: g.Seconds,
			HoldFor: g.Annotations[HoldForAnnotation], Reserve: g.Annotations[ReserveAnnotation], Allowance: g.Annotations[AllowanceAnnotation],
		}
		for _, c := range change {
			c(&all[i])
		}
	}
	return all
}

func noExecute() Settings {
	s := Defaults()
	s.FeatureGates = []string{GateNoExecute}
	return s
}

// Given VMs of one node and migrations of a known duration. Those for which there is a slot
// before their hold ends are in time.
func TestAnEstimateCountsWhoGetsASlotInTime(t *testing.T) {
	for name, c := range map[string]struct {
		vms                  int
		change               func(*Settings)
		takes                time.Duration
		inTime, late, needed int
	}{
		"7 times 2 of 60 in 150 s":            {60, func(*Settings) {}, 20 * time.Second, 14, 46, 9},
		"10 times 2 where it takes 15 s":      {60, func(*Settings) {}, 15 * time.Second, 20, 40, 6},
		"the last one ends with the hold":     {20, func(*Settings) {}, 15 * time.Second, 20, 0, 2},
		"the cluster's limit is less":         {60, func(s *Settings) { s.PerCluster = 1 }, 20 * time.Second, 7, 53, 9},
		"slots of their own":                  {60, func(s *Settings) { s.Held = 9 }, 20 * time.Second, 60, 0, 9},
		"one slot too few":                    {60, func(s *Settings) { s.Held = 8 }, 20 * time.Second, 56, 4, 9},
		"fewer of their own than of all":      {60, func(s *Settings) { s.Held = 1 }, 20 * time.Second, 7, 53, 9},
		"the inbound limit does not count":    {8, func(s *Settings) { s.PerTarget, s.Held = 1, 8 }, 100 * time.Second, 8, 0, 8},
		"a longer allowance":                  {60, func(s *Settings) { s.MigrationAllowance = 10 * time.Minute }, 20 * time.Second, 60, 0, 2},
		"no number of slots is enough":        {3, func(*Settings) {}, 151 * time.Second, 0, 3, 0},
		"more slots than VMs":                 {2, func(s *Settings) { s.Held = 1 << 20 }, 150 * time.Second, 2, 0, 2},
		"nobody":                              {0, func(*Settings) {}, 20 * time.Second, 0, 0, 0},
		"without an allowance nobody is held": {2, func(s *Settings) { s.MigrationAllowance = 0 }, 20 * time.Second, 0, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := noExecute()
			c.change(&s)
			e := s.EstimateOf(atRisk(c.vms, &s), c.takes)
			if e.InTime != c.inTime || e.Late != c.late || e.Needed != c.needed || e.NotMovable() != 0 {
				t.Errorf("%+v; want %d in time, %d late, %d slots needed", e, c.inTime, c.late, c.needed)
			}
		})
	}
}

// Given holds of different lengths. The shortest begin first, and a migration that is given up
// at the end of its hold leaves its slot then.
func TestTheShortestHoldsBeginFirst(t *testing.T) {
	seconds := func(all ...int) (holds []time.Duration) {
		for _, n := range all {
			holds = append(holds, time.Duration(n)*time.Second)
		}
		return holds
	}
	for _, c := range []struct {
		holds []time.Duration
		slots int
		want  int
	}{
		{seconds(20, 40, 60), 1, 3},
		{seconds(20, 39, 60), 1, 2},     // the second ends at 39, the third at 59
		{seconds(20, 30, 45, 70), 1, 2}, // given up at 30 and at 45
		{seconds(0, 20), 1, 1},
		{seconds(20, 20, 40, 40, 40), 2, 4},
		{seconds(20, 30, 40, 41), 2, 4},
	} {
		if got := inTime(c.holds, c.slots, 20*time.Second); got != c.want {
			t.Errorf("%v with %d slots: %d in time, want %d", c.holds, c.slots, got, c.want)
		}
	}
}

// Given launchers with different allowances, in any order.
func TestAnEstimateTakesEachLaunchersOwnAllowance(t *testing.T) {
	s := noExecute()
	s.Held = 1
	all := slices.Concat(
		atRisk(1, &s, func(v *AtRisk) { v.Allowance = "60" }),
		atRisk(1, &s, func(v *AtRisk) { v.Allowance = "40" }),
		atRisk(1, &s, func(v *AtRisk) { v.Allowance = "20" }),
		atRisk(1, &s, func(v *AtRisk) { v.GraceSeconds = 60 }), // all of it is the shutdown's
	)
	if e := s.EstimateOf(all, 20*time.Second); e.InTime != 3 || e.Late != 1 || e.Hold != 0 {
		t.Errorf("%+v; want 3 in time", e)
	}
}

func TestAnEstimateSaysWhyAVMStays(t *testing.T) {
	s := noExecute()
	stays := func(reason string, change func(*AtRisk)) []AtRisk {
		t.Helper()
		all := atRisk(1, &s, change)
		if got := all[0].Stays(&s); got != reason {
			t.Errorf("stays because of %q, want %q", got, reason)
		}
		return all
	}
	stays("", func(v *AtRisk) { // is on its way already
		v.VMI.Status.EvacuationNodeName = v.VMI.Node()
		v.VMI.Annotations = map[string]string{CauseAnnotation: CauseNoExecute}
	})
	all := slices.Concat(
		stays("NotMigratable", func(v *AtRisk) { v.VMI.Status.Conditions = nil }),
		stays("StrategyNone", func(v *AtRisk) { v.Strategy = kubevirt.StrategyNone }),
		stays("External", func(v *AtRisk) { v.Strategy = kubevirt.StrategyExternal }),
		stays("NotHeld", func(v *AtRisk) { v.HoldFor = CausePreemption }),
		stays("NotHeld", func(v *AtRisk) { v.HoldFor = "" }),
		stays("NodeNotReady", func(v *AtRisk) { v.NodeReady = false }),
		stays("NoOtherNode", func(v *AtRisk) { v.OtherNodes = 0 }),
		atRisk(3, &s),
	)
	e := s.EstimateOf(all, 20*time.Second)
	want := map[string]int{"NotMigratable": 1, "StrategyNone": 1, "External": 1, "NotHeld": 2, "NodeNotReady": 1, "NoOtherNode": 1}
	if !maps.Equal(e.Stay, want) || e.NotMovable() != 7 || e.InTime != 3 {
		t.Errorf("%+v; want %v and 3 in time", e, want)
	}
	if got := e.Why(); got != "2 NotHeld, 1 External, 1 NoOtherNode, 1 NodeNotReady, 1 NotMigratable, 1 StrategyNone" {
		t.Errorf("why: %s", got)
	}
	s.FeatureGates = nil
	if got := atRisk(1, &s)[0].Stays(&s); got != "GateOff" {
		t.Errorf("without the gate it stays because of %q", got)
	}
}

// Given succeeded migrations. The median of the last 20 counts, from phase Scheduling, with
// which the slot is taken. Otherwise one slow migration, or those of a former network, would
// decide.
func TestAMigrationsTimeIsTheMedianOfTheLast(t *testing.T) {
	of := func(phase kubevirt.MigrationPhase, begin, took int) kubevirt.VirtualMachineInstanceMigration {
		m := migration(fmt.Sprint(begin), phase)
		m.Status.PhaseTransitionTimestamps = []kubevirt.MigrationPhaseTransition{
			{Phase: kubevirt.MigrationPending, Timestamp: at(0)}, {Phase: kubevirt.MigrationScheduling, Timestamp: at(begin)}, {Phase: phase, Timestamp: at(begin + took)},
		}
		return m
	}
	var old []kubevirt.VirtualMachineInstanceMigration
	for i := range 30 {
		old = append(old, of(kubevirt.MigrationSucceeded, i, 300))
	}
	var last []kubevirt.VirtualMachineInstanceMigration
	for i := range 20 {
		last = append(last, of(kubevirt.MigrationSucceeded, 1000+i, 12))
	}
	last[3] = of(kubevirt.MigrationSucceeded, 1003, 900)
	for name, c := range map[string]struct {
		all      []kubevirt.VirtualMachineInstanceMigration
		want     time.Duration
		measured bool
	}{
		"none":                {nil, AssumedMigration, false},
		"none that succeeded": {[]kubevirt.VirtualMachineInstanceMigration{of(kubevirt.MigrationFailed, 0, 5), of(kubevirt.MigrationRunning, 0, 5)}, AssumedMigration, false},
		"one":                 {old[:1], 300 * time.Second, true},
		"the last":            {slices.Concat(old, last), 12 * time.Second, true},
		"at once":             {[]kubevirt.VirtualMachineInstanceMigration{of(kubevirt.MigrationSucceeded, 0, 0)}, time.Second, true},
	} {
		if takes, measured := MigrationTime(c.all); takes != c.want || measured != c.measured {
			t.Errorf("%s: %v, %v; want %v, %v", name, takes, measured, c.want, c.measured)
		}
	}
}
