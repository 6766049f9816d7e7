package evacuation

import (
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func cordonedMark(v *kubevirt.VirtualMachineInstance) {
	marked(v)
	v.Annotations = map[string]string{CordonedAnnotation: "node-a"}
}

func taintedMark(v *kubevirt.VirtualMachineInstance) {
	marked(v)
	v.Status.Mark = &kubevirt.Mark{NodeName: v.Status.EvacuationNodeName, Tainted: true}
}

func TestUnmark(t *testing.T) {
	const live = kubevirt.StrategyLiveMigrate
	for name, c := range map[string]struct {
		given  MarkFacts
		remove bool
	}{
		"uncordoned":                  {MarkFacts{VMI: vmi(cordonedMark), Strategy: live, NodeSchedulable: true}, true},
		"ended, still cordoned":       {MarkFacts{VMI: vmi(marked, func(v *kubevirt.VirtualMachineInstance) { v.Status.Phase = kubevirt.VMIFailed }), Strategy: live}, true},
		"still cordoned":              {MarkFacts{VMI: vmi(cordonedMark), Strategy: live}, false},
		"never was cordoned":          {MarkFacts{VMI: vmi(marked), Strategy: live, NodeSchedulable: true}, false},
		"the taint has gone":          {MarkFacts{VMI: vmi(taintedMark), Strategy: live, NodeSchedulable: true}, true},
		"still tainted":               {MarkFacts{VMI: vmi(taintedMark), Strategy: live, NodeSchedulable: true, NodeTainted: true}, false},
		"untainted, cordoned":         {MarkFacts{VMI: vmi(taintedMark), Strategy: live}, false},
		"uncordoned, still tainted":   {MarkFacts{VMI: vmi(cordonedMark), Strategy: live, NodeSchedulable: true, NodeTainted: true}, true},
		"untainted, External":         {MarkFacts{VMI: vmi(taintedMark), Strategy: kubevirt.StrategyExternal, NodeSchedulable: true}, false},
		"the launcher terminates":     {MarkFacts{VMI: vmi(cordonedMark), Strategy: live, NodeSchedulable: true, LauncherTerminating: true}, false},
		"External":                    {MarkFacts{VMI: vmi(cordonedMark), Strategy: kubevirt.StrategyExternal, NodeSchedulable: true}, false},
		"a mark that is stale anyway": {MarkFacts{VMI: vmi(cordonedMark, func(v *kubevirt.VirtualMachineInstance) { v.Status.NodeName = "node-b" }), Strategy: live, NodeSchedulable: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if remove, reason := Unmark(c.given); remove != c.remove || reason == "" {
				t.Errorf("the mark goes: %v (%s), want %v", remove, reason, c.remove)
			}
		})
	}
}

func TestWithdrawn(t *testing.T) {
	user := migration("user", kubevirt.MigrationPending)
	all := []kubevirt.VirtualMachineInstanceMigration{
		evacuation("done", kubevirt.MigrationSucceeded, 0), evacuation("new", "", 1),
		evacuation("pending", kubevirt.MigrationPending, 2), evacuation("begun", kubevirt.MigrationScheduling, 3),
		evacuation("runs", kubevirt.MigrationRunning, 4), user,
	}
	for name, c := range map[string]struct {
		given       func(*Evacuee)
		terminating bool
		want        int
	}{
		"no mark: those that have not begun":    {func(e *Evacuee) { e.VMI = vmi(migratable) }, false, 2},
		"no mark, and the target finds no node": {func(e *Evacuee) { e.VMI, e.Unschedulable = vmi(migratable), "no room" }, false, 3},
		"a mark of a former node":               {func(e *Evacuee) { e.VMI.Status.NodeName = "node-b" }, false, 2},
		"marked":                                {func(e *Evacuee) { e.Unschedulable = "no room" }, false, 0},
		"no mark, but the node is to be empty":  {func(e *Evacuee) { e.VMI, e.NodeDrained = vmi(migratable), true }, false, 0},
		"marked, and evictionStrategy is None":  {func(e *Evacuee) { e.Strategy = kubevirt.StrategyNone }, false, 3},
		"marked, and it is shut down already":   {func(e *Evacuee) { e.Strategy = kubevirt.StrategyNone }, true, 0},
		"marked, and evictionStrategy External": {func(e *Evacuee) { e.Strategy = kubevirt.StrategyExternal }, false, 0},
		"no mark, the launcher terminates":      {func(e *Evacuee) { e.VMI, e.Unschedulable = vmi(migratable), "no room" }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := evacuee(func(e *Evacuee) { e.Migrations, e.LauncherTerminating = all, c.terminating }, c.given)
			if got := Withdrawn(e); len(got) != c.want {
				t.Errorf("%d are withdrawn, want %d", len(got), c.want)
			}
		})
	}
}
