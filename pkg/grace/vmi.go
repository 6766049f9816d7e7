package grace

import "time"

// VMIState is what the watch of the API server shows of a VM's VMI.
type VMIState int

// The states. The zero value is "unknown": there is no API server, or it has
// not been heard of yet. VMIAbsent is no proof of anything.
const (
	VMIUnknown VMIState = iota
	VMIAbsent
	VMIPresent
	VMIDeleting // it has a deletionTimestamp, which its CRD's own deletion has not put there
)

// VMI is a VirtualMachineInstance of this node as the watch shows it.
type VMI struct {
	State   VMIState
	UID     string
	Created time.Time
	// DeletingAt is when the agent first knew of its deletion.
	DeletingAt Mono
}

func (v *VMI) visible() bool { return v.State == VMIPresent || v.State == VMIDeleting }

// Fate is what the API server, when asked, says became of a VMI.
type Fate string

// The fates.
const (
	FateUnknown Fate = ""
	FateHere    Fate = "here" // it is still there
	FateDeleted Fate = "deleted"
	FateMoved   Fate = "moved" // to another node
	FateLost    Fate = "lost"  // with its CRD: nobody has deleted the VM
	// FateReplaced: it was deleted, and another one has its name.
	FateReplaced Fate = "replaced"
)

const (
	// confirmRetry is how often the API server is asked about a VMI that is missing.
	confirmRetry = 2 * time.Second
	// killMargin is what lies between a deadline that was moved and kubelet's kill.
	killMargin = 2 * time.Second
)

// SeeVMI takes over what the watch shows.
func (o *Observation) SeeVMI(r *Record, v VMI) {
	news := v != o.VMI
	o.VMI = v
	if news && v.State == VMIPresent && v.UID == r.UID {
		o.Fate, o.Confirm = FateUnknown, Call{Running: o.Confirm.Running}
	}
}

// Became takes over what the API server said of the VMI with this UID.
func (o *Observation) Became(r *Record, uid string, f Fate, now Mono) {
	unproved := o.unproved(r)
	switch {
	case f == FateLost:
		o.Spent = uid
	case f == FateReplaced && unproved:
		return // the instance may be the other one's
	case f == FateReplaced:
		f = FateDeleted
	case f == FateMoved:
		o.Moved = uid
	}
	if unproved {
		o.Proved, o.ProvedAt, o.Confirm = uid, now, Call{}
	}
	if f != FateLost {
		o.Fate, o.FateAt = f, now
	}
}

// vmi is the VMI that counts: one that is spent says nothing any more.
func (o *Observation) vmi() VMI {
	if o.VMI.visible() && o.VMI.UID == o.Spent {
		return VMI{State: VMIAbsent}
	}
	return o.VMI
}

// Identity is whose VM this is: the API server knows best, then the record of
// what it said, then the launcher. created is zero where the API server never
// said anything.
func (o *Observation) Identity(r *Record) (uid string, created time.Time) {
	v := o.vmi()
	known := o.Recorded && !r.VMICreated.IsZero() && r.UID != o.Spent
	switch {
	case v.visible() && (!known || v.UID == r.UID):
		return v.UID, v.Created
	case known:
		return r.UID, r.VMICreated
	case o.UID != "":
		return o.UID, time.Time{}
	default:
		return r.UID, time.Time{}
	}
}

// Owner is the identity that the record may have. An instance that appears
// while the watch stands still may be that of a VMI which it does not show yet;
// the deletion of the one that it shows must not be held against that.
func (o *Observation) Owner(r *Record) (uid string, created time.Time) {
	if uid, created = o.Identity(r); o.unproved(r) {
		created = time.Time{}
	}
	return uid, created
}

// unproved: the watch shows a VMI, and the API server was not asked since the
// instance is there.
func (o *Observation) unproved(r *Record) bool {
	v := o.vmi()
	return v.visible() && v.UID != o.Proved && (r.VMICreated.IsZero() || r.UID == o.Spent)
}

// missing: the API server has shown the record's VMI, and does so no more.
func missing(r *Record, o *Observation) bool {
	if r.VMICreated.IsZero() || r.UID == o.Spent {
		return false
	}
	v := o.vmi()
	return v.State == VMIAbsent || v.visible() && v.UID != r.UID
}

// deleting: somebody has deleted the record's VMI, which is still shown.
func deleting(r *Record, o *Observation) bool {
	v := o.vmi()
	return v.State == VMIDeleting && v.UID == r.UID && !r.VMICreated.IsZero()
}

// vmiDeleted tells whether the record's VMI was deleted, and since when the
// agent knows.
func vmiDeleted(r *Record, o *Observation) (Mono, bool) {
	switch {
	case deleting(r, o):
		return max(o.VMI.DeletingAt, o.AdoptedAt, o.ProvedAt), true
	case missing(r, o) && o.Fate == FateDeleted:
		return o.FateAt, true
	default:
		return 0, false
	}
}

// confirmAt is when the API server is to be asked about the VMI, Never if
// there is nothing to ask.
func confirmAt(r *Record, o *Observation) Mono {
	settled := r.ShuttingDown() || o.Fate == FateDeleted || o.Fate == FateMoved
	switch {
	case settled || o.Confirm.Running || !missing(r, o) && !o.unproved(r):
		return Never
	case o.Confirm.Tries == 0:
		return 0
	default:
		return o.Confirm.Last.Add(confirmRetry)
	}
}

func confirm(r *Record, o *Observation, _ *Policy, now Mono) (Decision, bool) {
	if now < confirmAt(r, o) {
		return next()
	}
	return do(Confirm)
}

func moved(r *Record, o *Observation, _ *Policy, _ Mono) (Decision, bool) {
	if r.ShuttingDown() || o.Fate != FateMoved || !missing(r, o) || o.Trigger {
		return next()
	}
	return do(Forget)
}
