package taints

import "github.com/vmgrace/vmgrace/api/kubevirt"

// countsAsInFlight reports whether a VM counts: not if others move it, or it is only
// reported.
func countsAsInFlight(v *VM) bool { return v.Strategy != kubevirt.StrategyExternal && !reportedOnly(v) }

// reportedOnly reports whether the strategy is LiveMigrate and the VM cannot be migrated.
func reportedOnly(v *VM) bool { return v.Strategy == kubevirt.StrategyLiveMigrate && !v.Migratable }

// markWithoutEffect reports whether the VM was marked because of a taint, and can no longer
// be migrated.
func (w *World) markWithoutEffect(p Progress, v *VM) bool {
	return v.Marked && v.Ours && !v.Leaving && !w.awaitsEffect(p) && actionFor(v) == Evict
}

// inFlight reports whether the VM is being replaced because of a taint, and is still on its
// node.
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

// awaitsEffect reports whether the cache may not show a request's effect yet.
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
