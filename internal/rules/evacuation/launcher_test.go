package evacuation

import (
	"maps"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func TestALauncherOutlivesItsVM(t *testing.T) {
	on := Defaults()
	on.FeatureGates = []string{GatePreemption, GateNoExecute}
	held := LauncherGrace{200, map[string]string{
		HoldForAnnotation: CausePreemption + "," + CauseNoExecute, ReserveAnnotation: "50", AllowanceAnnotation: "150", PaddingAnnotation: "30",
	}}
	for name, c := range map[string]struct {
		vm, pod  *int64
		strategy kubevirt.EvictionStrategy
		settings Settings
		want     LauncherGrace
	}{
		"stated":          {new(int64(180)), new(int64(30)), "", Defaults(), LauncherGrace{Seconds: 210}},
		"default":         {nil, nil, "", Defaults(), LauncherGrace{Seconds: 60}},
		"zero":            {new(int64(0)), new(int64(5)), "", Defaults(), LauncherGrace{Seconds: 30}},
		"negative":        {new(int64(-1)), new(int64(0)), "", Defaults(), LauncherGrace{Seconds: 60}},
		"pod has more":    {new(int64(20)), new(int64(600)), "", Defaults(), LauncherGrace{Seconds: 600}},
		"may be held":     {new(int64(20)), nil, "LiveMigrate", on, held},
		"may be held too": {new(int64(20)), nil, "LiveMigrateIfPossible", on, held},
		"by others":       {new(int64(20)), nil, "External", on, LauncherGrace{Seconds: 50}},
		"never":           {new(int64(20)), nil, "None", on, LauncherGrace{Seconds: 50}},
		"gates are off":   {new(int64(20)), nil, "LiveMigrate", Defaults(), LauncherGrace{Seconds: 50}},
	} {
		vmi := &kubevirt.VirtualMachineInstance{}
		vmi.Spec.TerminationGracePeriodSeconds = c.vm
		if c.strategy != "" {
			vmi.Spec.EvictionStrategy = &c.strategy
		}
		if got := GraceFor(vmi, c.pod, &c.settings); !cmp.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// GraceFor is idempotent, shortens nothing, and does not overflow, even when the API
// server adds the result to the time.
func TestPaddingIsIdempotentAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vmi := &kubevirt.VirtualMachineInstance{}
		strategy := kubevirt.StrategyLiveMigrate
		vmi.Spec.EvictionStrategy = &strategy
		vmi.Spec.TerminationGracePeriodSeconds = new(rapid.Int64().Draw(t, "VM's"))
		s := Defaults()
		s.LauncherPadding = time.Duration(rapid.Int64Min(0).Draw(t, "padding"))
		s.MigrationAllowance = time.Duration(rapid.Int64Min(0).Draw(t, "allowance"))
		if rapid.Bool().Draw(t, "gate") {
			s.FeatureGates = []string{GatePreemption}
		}
		stated := rapid.Int64Range(0, 1000).Draw(t, "pod's")
		once := GraceFor(vmi, &stated, &s)
		twice := GraceFor(vmi, &once.Seconds, &s)
		if !cmp.Equal(once, twice) {
			t.Fatalf("%+v, then %+v", once, twice)
		}
		if once.Seconds < stated || once.Seconds > maxGraceSeconds {
			t.Fatalf("%+v for a pod with %d", once, stated)
		}
	})
}

// Given KubeVirt's launcher pods, whose grace periods exceed their VMs' by what KubeVirt needs. That
// stays the reserve, the allowance is added, and twice gives the same.
func TestBesideKubeVirtTheAllowanceIsAddedToTheLaunchersGrace(t *testing.T) {
	for name, c := range map[string]struct {
		vm, pod       int64
		want, reserve int64
	}{
		"KubeVirt's 15 s":    {60, 75, 240, 90},
		"more than padding":  {60, 200, 350, 200},
		"nearly for ever":    {60, math.MaxInt64, maxGraceSeconds, maxGraceSeconds},
		"VM's nearly so":     {math.MaxInt64, 15, maxGraceSeconds, maxGraceSeconds},
		"no time for a hold": {0, 0, 180, 30},
	} {
		s := Defaults()
		s.FeatureGates, s.EvictionStrategy = []string{GatePreemption}, kubevirt.StrategyLiveMigrate
		vmi := &kubevirt.VirtualMachineInstance{Spec: kubevirt.VirtualMachineInstanceSpec{TerminationGracePeriodSeconds: &c.vm}}
		once := GraceBeside(vmi, &c.pod, "", &s)
		if once.Seconds != c.want || once.Annotations[ReserveAnnotation] != strconv.FormatInt(c.reserve, 10) || once.Annotations[HoldForAnnotation] != CausePreemption {
			t.Errorf("%s: %d s, %v", name, once.Seconds, once.Annotations)
		}
		twice := GraceBeside(vmi, &once.Seconds, once.Annotations[AllowanceAnnotation], &s)
		if twice.Seconds != once.Seconds || c.want < maxGraceSeconds && !maps.Equal(twice.Annotations, once.Annotations) {
			t.Errorf("%s, twice: %d s, %v", name, twice.Seconds, twice.Annotations)
		}
		if s.EvictionStrategy = kubevirt.StrategyNone; GraceBeside(vmi, &c.pod, "", &s).Annotations != nil {
			t.Errorf("%s: a VM that is never moved is held", name)
		}
	}
}
