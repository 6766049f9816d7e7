package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// migrates reports whether a VM with this strategy is evacuated by a migration.
func migrates(s kubevirt.EvictionStrategy) bool {
	return s == kubevirt.StrategyLiveMigrate || s == kubevirt.StrategyLiveMigrateIfPossible
}

func knownStrategy(s kubevirt.EvictionStrategy) bool {
	_, known := verdicts[s]
	return known
}

// BlocksDrains reports whether evictions of the VM are refused and it is not evacuated:
// its strategy is LiveMigrate, and it is not migratable.
func BlocksDrains(vmi *kubevirt.VirtualMachineInstance, fallback kubevirt.EvictionStrategy) bool {
	strategy, _ := StrategyOf(vmi, fallback)
	return strategy == kubevirt.StrategyLiveMigrate && !vmi.Migratable() &&
		!vmi.Final() && vmi.DeletionTimestamp == nil && vmi.Node() != ""
}
