package evacuation

import "github.com/vmgrace/vmgrace/api/kubevirt"

// migrates reports whether a VM with this strategy is moved by a migration.
func migrates(s kubevirt.EvictionStrategy) bool {
	return s == kubevirt.StrategyLiveMigrate || s == kubevirt.StrategyLiveMigrateIfPossible
}

func knownStrategy(s kubevirt.EvictionStrategy) bool {
	_, known := verdicts[s]
	return known
}

// HoldsUpDrains reports whether an eviction of the VM is refused and nothing is
// done about it: it is to be migrated and cannot be.
func HoldsUpDrains(vmi *kubevirt.VirtualMachineInstance, fallback kubevirt.EvictionStrategy) bool {
	strategy, _ := StrategyOf(vmi, fallback)
	return strategy == kubevirt.StrategyLiveMigrate && !vmi.Migratable() &&
		!vmi.Final() && vmi.DeletionTimestamp == nil && vmi.Node() != ""
}
