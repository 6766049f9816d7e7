package grace

// changedFrom decides whether the save of a change may wait. What a tenant states may
// wait: the next agent reads it again. A VMI that the API server has shown may not: only
// with it can the next agent ask what became of the VMI.
func (v *VM) changedFrom(before Record, by Action) {
	before.Hold.Until, before.Hold.UntilAt = v.rec.Hold.Until, v.rec.Hold.UntilAt // it follows from the grace period
	if by == Refresh && before.VMICreated.Equal(v.rec.VMICreated) || by == HoldShutdown && before.Hold == v.rec.Hold {
		v.restated()
	} else {
		v.changed()
	}
}

func (v *VM) changed() {
	v.restated()
	v.obs.Urgent = true
}

// restated marks a change whose save may wait.
func (v *VM) restated() {
	v.obs.Version++
	v.obs.Unsaved = true
}

// SaveLater delays a save that may wait until at, at least.
func (v *VM) SaveLater(at Mono) { v.obs.SaveAfter = at }
