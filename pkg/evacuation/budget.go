package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// Sizes of a budget: pods that no eviction may take.
const (
	noBudget        = 0
	oneLauncher     = 1
	duringMigration = 2
)

// BudgetFacts is what is known of a VM when its disruption budget is looked at.
type BudgetFacts struct {
	VMI      *kubevirt.VirtualMachineInstance
	Strategy kubevirt.EvictionStrategy // StrategyOf the VMI
	// ActivePods counts the pods that the budget selects and that have not ended.
	ActivePods int
	// Migrations of the VMI, in any phase.
	Migrations []kubevirt.VirtualMachineInstanceMigration
	// Exists tells of a budget, and Label of the migration that it names.
	Exists bool
	Label  string
}

// Budget is what a VM's disruption budget is to be.
type Budget struct {
	MinAvailable int32  // 0: there is to be none
	Migration    string // the migration that it was expanded for, or empty
	Reason       string
	Message      string
}

// budgetRules are read from top to bottom: the first that holds decides.
var budgetRules = []struct {
	reason       string
	holds        func(BudgetFacts) bool
	minAvailable int32
	message      string
}{
	{"Ended", func(f BudgetFacts) bool { return f.VMI.Final() }, noBudget,
		"the VM has ended"},
	{"Deleting", func(f BudgetFacts) bool { return f.VMI.DeletionTimestamp != nil }, noBudget,
		"the VM is being shut down"},
	{"Migrating", func(f BudgetFacts) bool { return (f.Exists || f.needed()) && f.expanded() }, duringMigration,
		"a migration has, or is about to have, a second launcher pod"},
	{"Needed", BudgetFacts.needed, oneLauncher,
		"an eviction is to move the VM"},
	{"NotNeeded", func(BudgetFacts) bool { return true }, noBudget,
		"an eviction may shut the VM down"},
}

// BudgetFor decides whether a VM has a disruption budget and how large it is.
func BudgetFor(f BudgetFacts) Budget {
	for _, rule := range budgetRules {
		if !rule.holds(f) {
			continue
		}
		b := Budget{MinAvailable: rule.minAvailable, Reason: rule.reason, Message: rule.message}
		if rule.minAvailable == duringMigration {
			b.Migration = f.migration()
		}
		return b
	}
	return Budget{} // not reached: the last rule always holds
}

// BudgetName is the name of a VMI's budget: with it there cannot be two.
func BudgetName(uid string) string { return BudgetPrefix + uid }

// BudgetPrefix begins the names of all budgets that KubeVirt ever made.
const BudgetPrefix = "kubevirt-disruption-budget-"

func (f BudgetFacts) needed() bool {
	switch f.Strategy {
	case kubevirt.StrategyLiveMigrate, kubevirt.StrategyExternal:
		return true
	case kubevirt.StrategyLiveMigrateIfPossible:
		return f.VMI.Migratable()
	case kubevirt.StrategyNone:
	}
	return false
}

// expanded reports whether one launcher alone is not enough: while a migration
// is under way, and as long as it left two. A Pending migration waits for its
// turn, unless the budget was expanded for it already.
func (f BudgetFacts) expanded() bool {
	return f.ActivePods > 1 || f.underWay() != ""
}

func (f BudgetFacts) migration() string {
	if name := f.underWay(); name != "" {
		return name
	}
	return f.Label
}

func (f BudgetFacts) underWay() string {
	name := ""
	for i := range f.Migrations {
		m := &f.Migrations[i]
		switch {
		case m.Final():
		case m.Name == f.Label:
			return m.Name
		case !waiting(m):
			name = m.Name
		}
	}
	return name
}
