package evacuation

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func vmi(change ...func(*kubevirt.VirtualMachineInstance)) *kubevirt.VirtualMachineInstance {
	v := &kubevirt.VirtualMachineInstance{}
	v.Namespace, v.Name, v.UID = "ns", "vm", "vmi-uid"
	v.Status.Phase, v.Status.NodeName = kubevirt.VMIRunning, "node-a"
	for _, f := range change {
		f(v)
	}
	return v
}

func migratable(v *kubevirt.VirtualMachineInstance) {
	v.Status.Conditions = append(v.Status.Conditions,
		kubevirt.Condition{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue})
}

func marked(v *kubevirt.VirtualMachineInstance) { v.Status.EvacuationNodeName = v.Node() }

func withPhase(phase kubevirt.VMIPhase) func(*kubevirt.VirtualMachineInstance) {
	return func(v *kubevirt.VirtualMachineInstance) { v.Status.Phase = phase }
}

func deleting(v *kubevirt.VirtualMachineInstance) { now := metav1.Now(); v.DeletionTimestamp = &now }

func migration(name string, phase kubevirt.MigrationPhase) kubevirt.VirtualMachineInstanceMigration {
	m := kubevirt.VirtualMachineInstanceMigration{}
	m.Namespace, m.Name, m.UID, m.Spec.VMIName, m.Status.Phase = "ns", name, "uid-of-"+types.UID(name), "vm", phase
	return m
}

func TestBudget(t *testing.T) {
	const (
		none   = kubevirt.StrategyNone
		live   = kubevirt.StrategyLiveMigrate
		maybe  = kubevirt.StrategyLiveMigrateIfPossible
		extern = kubevirt.StrategyExternal
	)
	one := func(name string, phase kubevirt.MigrationPhase) []kubevirt.VirtualMachineInstanceMigration {
		return []kubevirt.VirtualMachineInstanceMigration{migration(name, phase)}
	}
	for name, c := range map[string]struct {
		given BudgetFacts
		want  int32
		label string
	}{
		"None":                       {BudgetFacts{VMI: vmi(migratable), Strategy: none, ActivePods: 1}, 0, ""},
		"LiveMigrate":                {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1}, 1, ""},
		"LiveMigrate not migratable": {BudgetFacts{VMI: vmi(), Strategy: live, ActivePods: 1}, 1, ""},
		"IfPossible":                 {BudgetFacts{VMI: vmi(migratable), Strategy: maybe, ActivePods: 1}, 1, ""},
		"IfPossible not migratable":  {BudgetFacts{VMI: vmi(), Strategy: maybe, ActivePods: 1, Exists: true}, 0, ""},
		"External":                   {BudgetFacts{VMI: vmi(), Strategy: extern, ActivePods: 1}, 1, ""},
		"no launcher yet":            {BudgetFacts{VMI: vmi(), Strategy: live}, 1, ""},
		"Succeeded":                  {BudgetFacts{VMI: vmi(withPhase(kubevirt.VMISucceeded)), Strategy: live, ActivePods: 1, Exists: true}, 0, ""},
		"Failed":                     {BudgetFacts{VMI: vmi(withPhase(kubevirt.VMIFailed)), Strategy: extern, Exists: true}, 0, ""},
		"being deleted":              {BudgetFacts{VMI: vmi(deleting), Strategy: live, ActivePods: 1, Exists: true}, 0, ""},
		"migration waits":            {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Migrations: one("m", kubevirt.MigrationPending)}, 1, ""},
		"migration is not looked at": {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Migrations: one("m", "")}, 1, ""},
		"expanded before the target pod": {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Exists: true, Label: "m",
			Migrations: one("m", kubevirt.MigrationPending)}, 2, "uid-of-m"},
		"target pod is scheduled":          {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Migrations: one("m", kubevirt.MigrationScheduling)}, 2, "uid-of-m"},
		"migration runs":                   {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 2, Migrations: one("m", kubevirt.MigrationRunning)}, 2, "uid-of-m"},
		"migration runs, label lost":       {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 2, Exists: true, Migrations: one("m", kubevirt.MigrationRunning)}, 2, "uid-of-m"},
		"over, two launchers":              {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 2, Exists: true, Label: "m", Migrations: one("m", kubevirt.MigrationSucceeded)}, 2, "m"},
		"failed, target pod is left":       {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 2, Exists: true, Label: "m", Migrations: one("m", kubevirt.MigrationFailed)}, 2, "m"},
		"over, one launcher":               {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Exists: true, Label: "m", Migrations: one("m", kubevirt.MigrationSucceeded)}, 1, ""},
		"migration deleted, one launcher":  {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Exists: true, Label: "m"}, 1, ""},
		"migration deleted, two launchers": {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 2, Exists: true, Label: "m"}, 2, "m"},
		"not migratable while it migrates": {BudgetFacts{VMI: vmi(), Strategy: maybe, ActivePods: 2, Exists: true, Label: "m", Migrations: one("m", kubevirt.MigrationRunning)}, 2, "uid-of-m"},
		"strategy goes while it migrates":  {BudgetFacts{VMI: vmi(), Strategy: none, ActivePods: 2, Exists: true, Label: "m", Migrations: one("m", kubevirt.MigrationRunning)}, 2, "uid-of-m"},
		"None is moved by a user":          {BudgetFacts{VMI: vmi(migratable), Strategy: none, ActivePods: 2, Migrations: one("m", kubevirt.MigrationRunning)}, 0, ""},
		"its label has its UID": {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Exists: true, Label: "uid-of-m",
			Migrations: one("m", kubevirt.MigrationPending)}, 2, "uid-of-m"},
		"a second migration after the first": {BudgetFacts{VMI: vmi(migratable), Strategy: live, ActivePods: 1, Exists: true, Label: "old",
			Migrations: append(one("old", kubevirt.MigrationFailed), one("new", kubevirt.MigrationScheduled)...)}, 2, "uid-of-new"},
	} {
		t.Run(name, func(t *testing.T) {
			got := BudgetFor(c.given)
			if got.MinAvailable != c.want || got.Migration != c.label {
				t.Errorf("minAvailable %d, migration %q (%s); want %d, %q", got.MinAvailable, got.Migration, got.Reason, c.want, c.label)
			}
			if got.Reason == "" || got.Message == "" {
				t.Errorf("a decision without a reason: %+v", got)
			}
		})
	}
}

// For every running VM the budget is not deleted during a migration, and is not smaller
// than the number of launcher pods.
func TestBudgetDuringMigration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := BudgetFacts{
			VMI: vmi(),
			Strategy: rapid.SampledFrom([]kubevirt.EvictionStrategy{kubevirt.StrategyNone, kubevirt.StrategyLiveMigrate,
				kubevirt.StrategyLiveMigrateIfPossible, kubevirt.StrategyExternal}).Draw(t, "strategy"),
			ActivePods: rapid.IntRange(0, 2).Draw(t, "pods"),
			Exists:     true,
			Label:      rapid.SampledFrom([]string{"", "a", "gone"}).Draw(t, "label"),
			Migrations: []kubevirt.VirtualMachineInstanceMigration{
				migration("a", rapid.SampledFrom(phases()).Draw(t, "a")),
				migration("b", rapid.SampledFrom(phases()).Draw(t, "b")),
			},
		}
		if rapid.Bool().Draw(t, "migratable") {
			migratable(f.VMI)
		}
		b := BudgetFor(f)
		underWay := false
		for i := range f.Migrations {
			underWay = underWay || !f.Migrations[i].Final() && !pending(&f.Migrations[i])
		}
		if (underWay || f.ActivePods > 1) && b.MinAvailable != duringMigration {
			t.Fatalf("migrating: %v, pods %d, and the budget is %d", underWay, f.ActivePods, b.MinAvailable)
		}
		if b.MinAvailable != duringMigration && b.Migration != "" {
			t.Fatalf("a budget of %d names migration %q", b.MinAvailable, b.Migration)
		}
	})
}

func phases() []kubevirt.MigrationPhase {
	return []kubevirt.MigrationPhase{"", kubevirt.MigrationPending, kubevirt.MigrationScheduling, kubevirt.MigrationScheduled,
		kubevirt.MigrationPreparingTarget, kubevirt.MigrationTargetReady, kubevirt.MigrationRunning,
		kubevirt.MigrationSucceeded, kubevirt.MigrationFailed}
}
