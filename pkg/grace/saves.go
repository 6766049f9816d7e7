package grace

// changedFrom tells what may wait from what is news of the VM. What a tenant states is
// stated again to the next agent. What the API server has shown may not be: with it comes
// the right to ask what became of the VMI.
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

// restated is called for a change whose save may wait.
func (v *VM) restated() {
	v.obs.Version++
	v.obs.Unsaved = true
}

// SaveLater has a save that may wait made at a time, or then.
func (v *VM) SaveLater(at Mono) { v.obs.SaveAfter = at }
