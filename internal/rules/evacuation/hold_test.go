package evacuation

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func TestWhichDisruptionsMarkAVM(t *testing.T) {
	const both = CausePreemption + "," + CauseNoExecute
	for name, c := range map[string]struct {
		change func(*Disruption, *Settings)
		want   string // the rule; a cause: marked
	}{
		"preempted":            {func(*Disruption, *Settings) {}, CausePreemption},
		"tainted away":         {func(d *Disruption, _ *Settings) { d.Reason = CauseNoExecute }, CauseNoExecute},
		"only asked for":       {func(d *Disruption, _ *Settings) { d.Deleting = false }, "PodNotDeleting"},
		"VMI deleted":          {func(d *Disruption, _ *Settings) { d.VMI.DeletionTimestamp = &metav1.Time{} }, "VMIDeleting"},
		"ended":                {func(d *Disruption, _ *Settings) { d.VMI.Status.Phase = kubevirt.VMISucceeded }, "VMIFinished"},
		"plain deletion":       {func(d *Disruption, _ *Settings) { d.Reason = "" }, "AnotherReason"},
		"node pressure":        {func(d *Disruption, _ *Settings) { d.Reason = "TerminationByKubelet" }, "AnotherReason"},
		"API eviction":         {func(d *Disruption, _ *Settings) { d.Reason = "EvictionByEvictionAPI" }, "AnotherReason"},
		"pod's node gone":      {func(d *Disruption, _ *Settings) { d.Reason = "DeletionByPodGC" }, "AnotherReason"},
		"gate off":             {func(_ *Disruption, s *Settings) { s.FeatureGates = []string{GateNoExecute} }, "GateOff"},
		"None":                 {func(d *Disruption, _ *Settings) { d.Strategy = kubevirt.StrategyNone }, "StrategyNone"},
		"IfPossible":           {func(d *Disruption, _ *Settings) { d.Strategy = kubevirt.StrategyLiveMigrateIfPossible }, CausePreemption},
		"not migratable":       {func(d *Disruption, _ *Settings) { d.VMI.Status.Conditions = nil }, "NotMigratable"},
		"External, not either": {func(d *Disruption, _ *Settings) { d.Strategy, d.HoldFor, d.VMI.Status.Conditions = "External", "", nil }, CausePreemption},
		"webhook was down":     {func(d *Disruption, _ *Settings) { d.HoldFor = "" }, "NotHeld"},
		"held for the other":   {func(d *Disruption, _ *Settings) { d.HoldFor = CauseNoExecute }, "NotHeld"},
		"node not Ready":       {func(d *Disruption, _ *Settings) { d.NodeReady = false }, "NodeNotReady"},
		"marked": {func(d *Disruption, _ *Settings) {
			d.VMI.Status.EvacuationNodeName, d.VMI.Annotations = "a", map[string]string{CauseAnnotation: CausePreemption}
		}, "Marked"},
		"KubeVirt's, not held": {func(d *Disruption, _ *Settings) { d.BesideKubeVirt, d.HoldFor = true, "" }, CausePreemption},
		"KubeVirt's, marked": {func(d *Disruption, _ *Settings) {
			d.BesideKubeVirt, d.VMI.Status.EvacuationNodeName = true, "a"
		}, "Marked"},
		"marked by an eviction": {func(d *Disruption, _ *Settings) {
			d.VMI.Status.EvacuationNodeName, d.VMI.Annotations = "a", map[string]string{CauseAnnotation: CauseEviction}
		}, CausePreemption},
	} {
		vmi := &kubevirt.VirtualMachineInstance{}
		vmi.Status.NodeName, vmi.Status.Phase = "a", kubevirt.VMIRunning
		vmi.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}}
		d := &Disruption{VMI: vmi, Strategy: kubevirt.StrategyLiveMigrate, NodeReady: true, Deleting: true, Reason: CausePreemption, HoldFor: both}
		s := Defaults()
		s.FeatureGates = []string{GatePreemption, GateNoExecute}
		c.change(d, &s)
		marks, why := Disrupted(d, &s)
		if marked := c.want == CausePreemption || c.want == CauseNoExecute; marks != marked || why != c.want {
			t.Errorf("%s: marked %v, %s; want %s", name, marks, why, c.want)
		}
	}
}

// A later eviction overwrites the condition of a pod that is being deleted.
func TestTheReasonOfAHoldIsTheFirst(t *testing.T) {
	const both = CausePreemption + "," + CauseNoExecute
	for _, c := range [][4]string{
		{both, CausePreemption, "", CausePreemption},
		{both, "EvictionByEvictionAPI", CauseNoExecute, CauseNoExecute},
		{both, "EvictionByEvictionAPI", CauseEviction, ""},
		{"", CausePreemption, CausePreemption, ""},
		{"EvictionByEvictionAPI", "EvictionByEvictionAPI", "", ""},
		{both, "", "", ""},
	} {
		if got := HoldReason(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("%q: %q, want %q", c[:3], got, c[3])
		}
	}
}

func TestAHoldsLatestMoment(t *testing.T) {
	deleted := time.Unix(1000, 0)
	kill := deleted.Add(200 * time.Second)
	for name, c := range map[string]struct {
		reserve, allowance string
		want               time.Duration // since the deletion
	}{
		"allowance first": {"50", "100", 100 * time.Second},
		"reserve first":   {"50", "180", 150 * time.Second},
		"no allowance":    {"50", "", 150 * time.Second},
		"nothing stated":  {"", "x", 200 * time.Second},
		"nonsense":        {"-5", "99999999999999999999", 200 * time.Second},
	} {
		if got := HeldUntil(kill, 200, c.reserve, c.allowance).Sub(deleted); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Kubernetes removes a condition only after 2 minutes. Until then a user may delete
// the pod.
func TestAConditionExplainsOnlyTheDeletionItComesWith(t *testing.T) {
	deleted := time.Unix(100_000, 0)
	for name, c := range map[string]struct {
		since time.Duration // after the deletion
		grace *int64
		want  bool
	}{
		"just before":          {-time.Second, new(int64(200)), true},
		"with the deletion":    {0, new(int64(200)), true},
		"shown by another":     {29 * time.Second, new(int64(200)), true},
		"95 s before":          {-95 * time.Second, new(int64(200)), false},
		"long after":           {31 * time.Second, new(int64(200)), false},
		"at the kill":          {200 * time.Second, new(int64(200)), false},
		"no grace period":      {-time.Second, nil, true},
		"old, no grace period": {-31 * time.Second, nil, false},
	} {
		kill := deleted
		if c.grace != nil {
			kill = deleted.Add(time.Duration(*c.grace) * time.Second)
		}
		if got := ExplainsDeletion(deleted.Add(c.since), kill, c.grace); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !ExplainsDeletion(time.Time{}, deleted, nil) {
		t.Error("a condition without a time was taken for an old one")
	}
}

func TestADeletedLauncherMayHaveTimeForAMigration(t *testing.T) {
	for name, c := range map[string]struct {
		grace            *int64
		kill             int64
		reserve, padding string
		want             bool
	}{
		"padded":             {new(int64(60)), 90, "", "", true},
		"no more than grace": {new(int64(60)), 60, "", "", false},
		"the margin alone":   {new(int64(60)), 62, "", "", false},
		"allowance":          {new(int64(60)), 240, "90", "30", true},
		"its reserve alone":  {new(int64(60)), 90, "90", "30", false},
		"edited, longer":     {new(int64(220)), 240, "90", "30", false},
		"default grace":      {nil, 40, "", "", true},
		"cut short":          {nil, 0, "60", "", false},
	} {
		vmi := &kubevirt.VirtualMachineInstance{}
		vmi.Spec.TerminationGracePeriodSeconds = c.grace
		if got := InTime(vmi, c.kill, c.reserve, c.padding); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
