package evacuation

import (
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// An explanation counts for the mark that it was written with, and for no later one.
func TestAMarkIsExplained(t *testing.T) {
	why := Explanation{Cause: CausePreemption, Descheduler: true, Cordoned: true}
	explained := func(node string) func(*kubevirt.VirtualMachineInstance) {
		return func(v *kubevirt.VirtualMachineInstance) { v.Status.Mark = why.Mark(node) }
	}
	annotated := func(v *kubevirt.VirtualMachineInstance) {
		v.Annotations = map[string]string{
			CauseAnnotation: CauseNodeTaint, CordonedAnnotation: "true", kubevirt.EvictionSourceAnnotation: kubevirt.EvictionSourceDescheduler,
		}
	}
	before := Explanation{Cause: CauseNodeTaint, Descheduler: true, Cordoned: true}
	elsewhere := func(v *kubevirt.VirtualMachineInstance) { v.Status.EvacuationNodeName = "node-of-old" }
	for name, c := range map[string]struct {
		vmi  *kubevirt.VirtualMachineInstance
		want Explanation
	}{
		"in the status":                          {vmi(marked, explained("node-a")), why},
		"in the status, beside annotations":      {vmi(marked, explained("node-a"), annotated), why},
		"by an earlier version":                  {vmi(marked, annotated), before},
		"of another mark":                        {vmi(marked, explained("node-b")), Explanation{}},
		"not at all":                             {vmi(marked), Explanation{}},
		"the mark has gone, its explanation not": {vmi(explained("node-a"), annotated), Explanation{}},
		"the mark is stale":                      {vmi(explained("node-of-old"), annotated, elsewhere), Explanation{}},
	} {
		if got := ExplanationOf(c.vmi); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The condition that a mark is written with is the one that the controller would write once the
// VM has its migration. Otherwise each evacuation would take a further request.
func TestAMarksConditionNeedsNoFurtherWrite(t *testing.T) {
	said := func(s Step) *kubevirt.Condition {
		return &kubevirt.Condition{Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionTrue, Reason: s.Reason, Message: s.Message}
	}
	for strategy, external := range map[kubevirt.EvictionStrategy]bool{kubevirt.StrategyLiveMigrate: false, kubevirt.StrategyExternal: true} {
		first := (&Explanation{External: external}).First()
		next := Next(evacuee(func(e *Evacuee) {
			e.Strategy, e.Migrations = strategy, []kubevirt.VirtualMachineInstanceMigration{evacuation("m", kubevirt.MigrationPending, 0)}
		}))
		if !next.SaidBy(said(first)) || first.Message == "" {
			t.Errorf("%s: %+v does not say %+v", strategy, first, next)
		}
	}
	first := (&Explanation{}).First()
	for _, next := range []Step{{Reason: "NoRoom", Message: first.Message}, {Reason: "Backoff"}, {}} {
		if next.SaidBy(said(first)) || next.SaidBy(nil) {
			t.Errorf("it seems to say %+v", next)
		}
	}
	const another = "migration m is to move the VM"
	if next := (Step{Reason: first.Reason, Message: "migration n is to move the VM"}); next.SaidBy(said(Step{Reason: first.Reason, Message: another})) {
		t.Error("it names another migration")
	}
}

// A VM whose last migration has moved it away from the node that its VMI shows may have left.
func TestAVMSeemsMoved(t *testing.T) {
	from := func(node string, phase kubevirt.MigrationPhase, seconds int) kubevirt.VirtualMachineInstanceMigration {
		m := evacuation("m", phase, seconds)
		m.Status.MigrationState = &kubevirt.MigrationState{SourceNode: node}
		return m
	}
	for name, c := range map[string]struct {
		migrations []kubevirt.VirtualMachineInstanceMigration
		want       bool
	}{
		"away from here":         {[]kubevirt.VirtualMachineInstanceMigration{from("node-a", "Succeeded", -9)}, true},
		"away and back":          {[]kubevirt.VirtualMachineInstanceMigration{from("node-a", "Succeeded", -9), from("node-b", "Succeeded", -5)}, false},
		"not moved: it failed":   {[]kubevirt.VirtualMachineInstanceMigration{from("node-a", "Failed", -9)}, false},
		"never":                  {nil, false},
		"without a known source": {[]kubevirt.VirtualMachineInstanceMigration{evacuation("m", "Succeeded", -9)}, false},
	} {
		if got := evacuee(func(e *Evacuee) { e.Migrations = c.migrations }).SeemsMoved(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
