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
	// VMIDeleting: it was deleted. A VMI is shown so only once its CRD is known to
	// be there, older than the VMI and not being deleted itself: that puts a
	// deletionTimestamp on all VMIs.
	VMIDeleting
)

// VMI is a VirtualMachineInstance of this node as the watch shows it; UID is ""
// where it shows none.
type VMI struct {
	State   VMIState
	UID     string
	Created time.Time
	Grace   string // as stated, "" if it is not
	// DeletingAt is when the agent first knew of its deletion.
	DeletingAt Mono
	// Marked: it is to leave this node.
	Marked bool
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
	FateLost    Fate = "lost"  // with its CRD, not by a deletion of its own
	// FateReplaced: it was deleted, and another one has its name.
	FateReplaced Fate = "replaced"
)

const (
	// confirmRetry is how often the API server is asked about a VMI.
	confirmRetry = 2 * time.Second
	// killMargin is what lies between a deadline that was moved and kubelet's kill.
	killMargin = 2 * time.Second
)

// owner says whose VM an instance is. The best proof counts: a VMI that was
// confirmed, which is in the record with its creation time; one that is only
// shown, and may be the one before or after this instance's; the UID that the
// launcher claims.
type owner struct {
	Shown   VMI
	Claimed string // by the launcher pod's label, or else by vm.json
	// Confirmed is the UID of the VMI that the API server knew while this
	// instance was there, since ConfirmedAt.
	Confirmed   string
	ConfirmedAt Mono
	// Fate is what became of the record's VMI, known since FateAt.
	Fate   Fate
	FateAt Mono
	// Former is a VMI that says nothing of this instance any more, because of
	// what became of it: deleted, and its shutdown done; lost with its CRD; moved
	// away, in which case it counts again when it is back.
	Former     string
	FormerFate Fate
}

// current is the VMI that is shown, unless it is a former one.
func (w *owner) current() VMI {
	if w.Shown.visible() && w.Shown.UID == w.endedUID() {
		return VMI{State: VMIAbsent}
	}
	return w.Shown
}

// endedUID is the UID of the former VMI that does not come back.
func (w *owner) endedUID() string {
	if w.FormerFate == FateMoved {
		return ""
	}
	return w.Former
}

// recorded reports whether the record has a VMI that counts.
func (w *owner) recorded(r *Record) bool { return !r.VMICreated.IsZero() && r.UID != w.endedUID() }

// Is tells whose VM it is: the API server has precedence, then the record of what
// it said, then the launcher. created is zero where the API server never said
// anything.
func (w *owner) Is(r *Record) (uid string, created time.Time) {
	v, known := w.current(), w.recorded(r)
	switch {
	case v.visible() && (!known || v.UID == r.UID):
		return v.UID, v.Created
	case known:
		return r.UID, r.VMICreated
	case w.Claimed != "":
		return w.Claimed, time.Time{}
	default:
		return r.UID, time.Time{}
	}
}

// toRecord is Is without what is only shown: an instance that appears while
// the watch stands still may be that of a VMI which it does not show yet, and
// the deletion of the one that it shows must not be held against that.
func (w *owner) toRecord(r *Record) (uid string, created time.Time) {
	if uid, created = w.Is(r); w.unconfirmed(r) {
		created = time.Time{}
	}
	return uid, created
}

// unconfirmed: the watch shows a VMI, and the API server was not asked since
// the instance is there.
func (w *owner) unconfirmed(r *Record) bool {
	v := w.current()
	return v.visible() && v.UID != w.Confirmed && !w.recorded(r)
}

// missing: the API server has shown the record's VMI, and does so no more.
func (w *owner) missing(r *Record) bool {
	v := w.current()
	return w.recorded(r) && (v.State == VMIAbsent || v.visible() && v.UID != r.UID)
}

// deleting: the record's VMI is shown with a deletion of its own.
func (w *owner) deleting(r *Record) bool {
	v := w.current()
	return v.State == VMIDeleting && v.UID == r.UID && !r.VMICreated.IsZero()
}

// deleted reports whether the record's VMI was deleted, and since when the agent
// knows.
func (w *owner) deleted(r *Record) (Mono, bool) {
	switch {
	case w.deleting(r):
		return max(w.Shown.DeletingAt, w.ConfirmedAt), true
	case w.missing(r) && w.Fate == FateDeleted:
		return w.FateAt, true
	default:
		return 0, false
	}
}

// unclear: the API server has to be asked.
func (w *owner) unclear(r *Record) bool {
	settled := w.Fate == FateDeleted || w.Fate == FateMoved
	return !settled && w.missing(r) || w.unconfirmed(r)
}

// leftBehind: the launcher is that of a VMI that has moved away.
func (w *owner) leftBehind() bool {
	return w.FormerFate == FateMoved && w.Claimed == w.Former
}

// see takes over what the watch shows. It returns true where an earlier answer
// says nothing any more: the record's VMI is shown again.
func (w *owner) see(r *Record, v VMI) (again bool) {
	again = v != w.Shown && v.State == VMIPresent && v.UID == r.UID
	w.Shown = v
	if again {
		w.Fate = FateUnknown
	}
	return again
}

// learn takes over what the API server said of the VMI with this UID. It
// returns true where that is news of an instance that was not confirmed.
func (w *owner) learn(r *Record, uid string, f Fate, now Mono) (confirmed bool) {
	unconfirmed := w.unconfirmed(r)
	switch {
	case f == FateReplaced && unconfirmed:
		return false // the instance may be the other one's
	case f == FateReplaced:
		f = FateDeleted
	case f == FateLost:
		w.Former, w.FormerFate = uid, f
	case f == FateMoved && !unconfirmed && !w.missing(r):
		return false // it is back already
	case f == FateMoved:
		w.Former, w.FormerFate = uid, f
	}
	if unconfirmed {
		w.Confirmed, w.ConfirmedAt = uid, now
	}
	if f != FateLost {
		w.Fate, w.FateAt = f, now
	}
	return unconfirmed
}

// next is what stays for the next instance.
func (w *owner) next() owner {
	return owner{Shown: w.Shown, Claimed: w.Claimed, Former: w.Former, FormerFate: w.FormerFate}
}

// ended is called where the instance has ended: the deletion of its VMI is not
// held against the next one.
func (w *owner) ended() {
	if w.Shown.State == VMIDeleting {
		w.Former, w.FormerFate = w.Shown.UID, FateDeleted
	}
}

func confirm(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if now < o.confirmAt(r) {
		return next()
	}
	return do(Confirm)
}

// confirmAt is when the API server is to be asked about the VMI, Never if
// there is nothing to ask.
func (o *observation) confirmAt(r *Record) Mono {
	switch {
	case r.ShuttingDown() || o.Confirm.Running || !o.Owner.unclear(r):
		return Never
	case o.Confirm.Tries == 0:
		return 0
	default:
		return o.Confirm.Last.Add(confirmRetry)
	}
}

func moved(r *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if r.ShuttingDown() || o.Owner.Fate != FateMoved || !o.Owner.missing(r) || o.Trigger {
		return next()
	}
	return do(Forget)
}
