package replacement

import "github.com/vmgrace/vmgrace/api/kubevirt"

// countsAsInFlight: VMs that others move, or that are only reported, do not count.
func countsAsInFlight(v *VM) bool { return v.Strategy != kubevirt.StrategyExternal && !reportedOnly(v) }

// reportedOnly: the strategy is LiveMigrate, and the VM cannot be migrated.
func reportedOnly(v *VM) bool { return v.Strategy == kubevirt.StrategyLiveMigrate && !v.Migratable }

// markWithoutEffect: the VM was marked because of a taint, and cannot be migrated any more.
func (w *World) markWithoutEffect(p Progress, v *VM) bool {
	return v.Marked && v.Ours && !v.Leaving && !w.awaitsEffect(p) && actionFor(v) == Evict
}

// inFlight tells whether the VM is being replaced because of a taint, and still on its node.
func (w *World) inFlight(p Progress, v *VM) bool {
	switch {
	case !countsAsInFlight(v) || v.Node == "" || !v.Launcher:
		return false
	case v.Marked:
		return v.Ours
	case p.Started.IsZero():
		return false
	}
	return v.Leaving || w.awaitsEffect(p)
}

// awaitsEffect tells whether the effect of a request may not be in the cache yet.
func (w *World) awaitsEffect(p Progress) bool {
	return !p.Asked.IsZero() && w.Now.Before(p.Asked.Add(effectTimeout)) && !p.Asked.After(w.Now)
}

// actionFor returns how a VM is replaced.
func actionFor(vm *VM) Action {
	moves := vm.Strategy == kubevirt.StrategyLiveMigrate || vm.Strategy == kubevirt.StrategyLiveMigrateIfPossible
	if vm.Strategy == kubevirt.StrategyExternal || vm.Migratable && moves {
		return Mark
	}
	return Evict
}
