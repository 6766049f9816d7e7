package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// Values of a budget's minAvailable.
const (
	noBudget        = 0
	oneLauncher     = 1
	duringMigration = 2
)

// BudgetFacts is the state of a VM that its disruption budget depends on.
type BudgetFacts struct {
	VMI      *kubevirt.VirtualMachineInstance
	Strategy kubevirt.EvictionStrategy // StrategyOf the VMI
	// ActivePods is the number of pods that the budget selects and that have not ended.
	ActivePods int
	// Migrations of the VMI, in any phase.
	Migrations []kubevirt.VirtualMachineInstanceMigration
	// Exists means that the VM has a budget. Label is the UID of the migration in its label; earlier
	// versions wrote its name, which may be too long.
	Exists bool
	Label  string
}

// Budget is the desired disruption budget of a VM.
type Budget struct {
	MinAvailable int32  // 0: no budget
	Migration    string // the UID of the migration for which minAvailable is 2, or empty
	Reason       string
	Message      string
}

// budgetRules decides by the first rule that holds.
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

// BudgetFor returns the desired disruption budget of a VM.
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

// BudgetName returns the name of a VMI's budget. The fixed name prevents a second one.
func BudgetName(uid string) string { return BudgetPrefix + uid }

// BudgetPrefix is the prefix of the names of budgets, in every version of KubeVirt.
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

// expanded reports whether minAvailable is to be 2: while a migration is under way, or
// while it leaves two launcher pods. A Pending migration does not count, unless the budget
// names it already.
func (f BudgetFacts) expanded() bool {
	return f.ActivePods > 1 || f.underWay() != ""
}

func (f BudgetFacts) migration() string {
	if uid := f.underWay(); uid != "" {
		return uid
	}
	return f.Label
}

func (f BudgetFacts) underWay() string {
	uid := ""
	for i := range f.Migrations {
		m := &f.Migrations[i]
		switch {
		case m.Final():
		case string(m.UID) == f.Label || m.Name == f.Label:
			return string(m.UID)
		case !pending(m):
			uid = string(m.UID)
		}
	}
	return uid
}
