package evacuation

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func TestOnlyABudgetThatRefusesAnswers(t *testing.T) {
	const first = `Eviction triggered evacuation of VMI "ns/vm"`
	for name, c := range map[string]struct {
		change func(*Protection)
		reason string
	}{
		"it refuses":                 {func(*Protection) {}, "BudgetAnswers"},
		"one pod of two":             {func(p *Protection) { p.Expected, p.Desired, p.Healthy = 2, 2, 2 }, "BudgetAnswers"},
		"not ready, refuses":         {func(p *Protection) { p.Ready, p.Healthy = false, 0 }, "BudgetAnswers"},
		"nothing was read":           {func(p *Protection) { *p = Protection{} }, "NoBudget"},
		"none":                       {func(p *Protection) { p.Found = false }, "NoBudget"},
		"changed since":              {func(p *Protection) { p.Observed = false }, "BudgetNotObserved"},
		"the pod is not counted yet": {func(p *Protection) { p.Expected = 0 }, "BudgetNotObserved"},
		"it allows one":              {func(p *Protection) { p.Allowed = 1 }, "BudgetAllows"},
		"a second one":               {func(p *Protection) { p.Others = true }, "SeveralBudgets"},
		"pod that does not run yet":  {func(p *Protection) { p.Pending, p.Ready = true, false }, "PodPending"},
		"not ready, another is":      {func(p *Protection) { p.Ready = false }, "PodNotReady"},
		"not ready, evicts those":    {func(p *Protection) { p.Ready, p.Healthy, p.EvictsUnhealthy = false, 0, true }, "PodNotReady"},
	} {
		// Given a marked VM, and what was read of its budget
		pod, vmi := given(kubevirt.StrategyLiveMigrate, onceMarked)
		p := Protection{Found: true, Observed: true, Expected: 1, Healthy: 1, Desired: 1, Ready: true}
		c.change(&p)
		// When its pod is evicted
		a := Admit(pod, vmi, "")
		if !a.LeftToBudget() {
			t.Fatalf("%s: %+v", name, a)
		}
		a = a.WithBudget(vmi, &p)
		// Then the budget answers, or the message of the first answer
		want := Admission{Verdict: Refuse, Reason: c.reason, Message: first, Strategy: kubevirt.StrategyLiveMigrate}
		if c.reason == "BudgetAnswers" {
			want.Verdict, want.Message = Allow, ""
		}
		if a != want {
			t.Errorf("%s: %+v, want %+v", name, a, want)
		}
	}
}

func TestOnlyMarkedVMsAreLeftToTheirBudget(t *testing.T) {
	for _, strategy := range []kubevirt.EvictionStrategy{"", "None", "LiveMigrate", "LiveMigrateIfPossible", "External", "x"} {
		for name, change := range map[string]func(*Pod, *kubevirt.VirtualMachineInstance){
			"not marked":   func(*Pod, *kubevirt.VirtualMachineInstance) {},
			"deleting":     func(p *Pod, v *kubevirt.VirtualMachineInstance) { onceMarked(p, v); p.Deleting = true },
			"another node": func(p *Pod, v *kubevirt.VirtualMachineInstance) { onceMarked(p, v); p.Node = "node-b" },
		} {
			p, vmi := given(strategy, change)
			if a := Admit(p, vmi, ""); a.LeftToBudget() {
				t.Errorf("%q, %s: %+v", strategy, name, a)
			}
		}
	}
}

func TestUnknownIsNotRefusedAsNotMigratable(t *testing.T) {
	const unknown = "kubevirt failed getting the vmi: it is not known yet whether vm is live-migratable"
	for name, judge := range map[string]func(*kubevirt.VirtualMachineInstance){
		"missing": func(v *kubevirt.VirtualMachineInstance) { v.Status.Conditions = nil },
		"Unknown": func(v *kubevirt.VirtualMachineInstance) { v.Status.Conditions[0].Status = "Unknown" },
	} {
		for _, marked := range []bool{false, true} {
			for strategy, want := range map[kubevirt.EvictionStrategy]Verdict{
				"LiveMigrate": Refuse, "LiveMigrateIfPossible": Refuse, "None": Allow, "x": Allow,
			} {
				p, vmi := given(strategy)
				judge(vmi)
				p.Settling = true
				if marked {
					onceMarked(p, vmi)
				}
				a := Admit(p, vmi, "")
				if a.Verdict != want || want == Refuse && a.Message != unknown {
					t.Errorf("%s, %s, marked %v: %+v", name, strategy, marked, a)
				}
			}
			p, vmi := given("External")
			judge(vmi)
			p.Settling = true
			if a := Admit(p, vmi, ""); a.Verdict != Mark {
				t.Errorf("%s, External: %+v", name, a)
			}
		}
	}
	for name, change := range map[string]func(*Pod){
		"it is deleted": func(p *Pod) { p.Deleting = true },
		"a target":      func(p *Pod) { p.Node = "node-b" },
	} {
		p, vmi := given(kubevirt.StrategyLiveMigrate, stuck)
		p.Settling = true
		change(p)
		if a := Admit(p, vmi, ""); a.Verdict != Allow || a.Message != "" {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for status, want := range map[string]string{"True": "ToBeMigrated", "False": "NotMigratable"} {
		p, vmi := given(kubevirt.StrategyLiveMigrate)
		p.Settling, vmi.Status.Conditions[0].Status = true, status
		if a := Admit(p, vmi, ""); a.Reason != want {
			t.Errorf("judged %s: %+v", status, a)
		}
	}
}

func TestAVMSettlesForABoundedTime(t *testing.T) {
	now := time.Unix(100_000, 0)
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	for name, c := range map[string]struct {
		created time.Duration
		ready   *time.Time
		want    bool
	}{
		"just ready":                 {time.Hour, ago(0), true},
		"ready for 59 s":             {time.Hour, ago(59 * time.Second), true},
		"ready for a minute":         {time.Hour, ago(time.Minute), false},
		"ready, since when unknown":  {time.Second, new(time.Time), false},
		"not ready yet":              {4 * time.Minute, nil, true},
		"not ready for five minutes": {5 * time.Minute, nil, false},
	} {
		if got := Settling(now, now.Add(-c.created), c.ready); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
