package replacement

import "github.com/vmgrace/vmgrace/api/kubevirt"

// takesRoom: what others move, and what is only said, is not waited for.
func takesRoom(v *VM) bool { return v.Strategy != kubevirt.StrategyExternal && !onlySaid(v) }

// onlySaid: it asked to be moved and not stopped, and cannot be moved.
func onlySaid(v *VM) bool { return v.Strategy == kubevirt.StrategyLiveMigrate && !v.Migratable }

// stranded: a mark of ours does not move it any more, as its VM cannot be migrated
// since.
func (w *World) stranded(p Progress, v *VM) bool {
	return v.Marked && v.Ours && !v.Leaving && !w.asked(p) && how(v) == Evict
}

// inFlight tells whether the VM is being replaced, by this, and still there.
func (w *World) inFlight(p Progress, v *VM) bool {
	switch {
	case !takesRoom(v) || v.Node == "" || !v.Launcher:
		return false
	case v.Marked:
		return v.Ours
	case p.Started.IsZero():
		return false
	}
	return v.Leaving || w.asked(p)
}

// asked tells whether what was asked for is yet to be seen.
func (w *World) asked(p Progress) bool {
	return !p.Asked.IsZero() && w.Now.Before(p.Asked.Add(settle)) && !p.Asked.After(w.Now)
}

// how a VM is replaced.
func how(vm *VM) Action {
	moves := vm.Strategy == kubevirt.StrategyLiveMigrate || vm.Strategy == kubevirt.StrategyLiveMigrateIfPossible
	if vm.Strategy == kubevirt.StrategyExternal || vm.Migratable && moves {
		return Mark
	}
	return Evict
}
