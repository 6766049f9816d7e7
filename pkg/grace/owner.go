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
	// VMIDeleting means that the VMI was deleted. It is shown only if the CRD is known to
	// exist, to be older than the VMI, and not to be deleted itself: that sets a
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
	// Marked means that it is to leave this node.
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
	// FateFenced means that it was moved to another node because this one was fenced: what runs here
	// was given up.
	FateFenced Fate = "fenced"
	FateLost   Fate = "lost" // with its CRD, not by a deletion of its own
	// FateReplaced means that it was deleted and another one has its name.
	FateReplaced Fate = "replaced"
)

const (
	// confirmRetry is how often the API server is asked about a VMI.
	confirmRetry = 2 * time.Second
	// killMargin is the time between a deadline that was moved and kubelet's kill.
	killMargin = 2 * time.Second
)

// owner tells whose VM an instance is. The best proof counts. Best is a VMI that was
// confirmed; the record has its creation time. Next is one that is only shown, and may be
// another instance's. Last is the UID that the launcher claims.
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
	// Former is a VMI that no longer counts for this instance: it was deleted and its
	// shutdown is done, it was lost with its CRD, or it moved away. One that moved away
	// counts again when it is back.
	Former     string
	FormerFate Fate
}

// current returns the VMI that is shown, VMIAbsent if it is a former one.
func (w *owner) current() VMI {
	if w.Shown.visible() && w.Shown.UID == w.endedUID() {
		return VMI{State: VMIAbsent}
	}
	return w.Shown
}

// endedUID returns the UID of the former VMI unless it moved and may come back.
func (w *owner) endedUID() string {
	if w.FormerFate == FateMoved {
		return ""
	}
	return w.Former
}

// recorded reports whether the record has a VMI that counts.
func (w *owner) recorded(r *Record) bool { return !r.VMICreated.IsZero() && r.UID != w.endedUID() }

// Is returns whose VM it is. A recorded VMI has precedence, then the one that is shown,
// then the launcher's claim. created is zero if the API server never showed that VMI.
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

// toRecord is Is, with a zero created for a VMI that is only shown. If the watch is late,
// the instance may belong to a VMI that is not shown yet. The deletion of the shown one
// must not count for that.
func (w *owner) toRecord(r *Record) (uid string, created time.Time) {
	if uid, created = w.Is(r); w.unconfirmed(r) {
		created = time.Time{}
	}
	return uid, created
}

// unconfirmed reports whether a VMI is shown that the API server was not asked about
// since the instance appeared.
func (w *owner) unconfirmed(r *Record) bool {
	v := w.current()
	return v.visible() && v.UID != w.Confirmed && !w.recorded(r)
}

// missing reports whether the API server has shown the record's VMI and no longer does.
func (w *owner) missing(r *Record) bool {
	v := w.current()
	return w.recorded(r) && (v.State == VMIAbsent || v.visible() && v.UID != r.UID)
}

// deleting reports whether the record's VMI is shown with a deletion of its own.
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

// givenUp reports whether the VM runs elsewhere since this node was fenced.
func (w *owner) givenUp(r *Record) bool { return w.Fate == FateFenced && w.missing(r) }

// unclear reports whether to ask the API server.
func (w *owner) unclear(r *Record) bool {
	settled := w.Fate == FateDeleted || w.Fate == FateMoved || w.Fate == FateFenced
	return !settled && w.missing(r) || w.unconfirmed(r)
}

// leftBehind reports whether the launcher is that of a VMI that has moved away.
func (w *owner) leftBehind() bool {
	return w.FormerFate == FateMoved && w.Claimed == w.Former
}

// see takes what the watch shows. It returns true if that voids an earlier answer: the
// record's VMI is shown again.
func (w *owner) see(r *Record, v VMI) (again bool) {
	again = v != w.Shown && v.State == VMIPresent && v.UID == r.UID
	w.Shown = v
	if again {
		w.Fate = FateUnknown
	}
	return again
}

// learn takes what the API server said of the VMI with this UID. It returns true if the
// instance was unconfirmed and the answer counts.
func (w *owner) learn(r *Record, uid string, f Fate, now Mono) (confirmed bool) {
	unconfirmed := w.unconfirmed(r)
	switch {
	case f == FateReplaced && unconfirmed:
		return false // the instance may be the other one's
	case f == FateReplaced:
		f = FateDeleted
	case f == FateLost:
		w.Former, w.FormerFate = uid, f
	case (f == FateMoved || f == FateFenced) && !unconfirmed && !w.missing(r):
		return false // it is back already
	case f == FateMoved || f == FateFenced:
		w.Former, w.FormerFate = uid, FateMoved
	}
	if unconfirmed {
		w.Confirmed, w.ConfirmedAt = uid, now
	}
	if f != FateLost {
		w.Fate, w.FateAt = f, now
	}
	return unconfirmed
}

// next returns what stays valid for the next instance.
func (w *owner) next() owner {
	return owner{Shown: w.Shown, Claimed: w.Claimed, Former: w.Former, FormerFate: w.FormerFate}
}

// ended notes that the instance has ended, so that the deletion of its VMI does not count
// for the next one.
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

// confirmAt returns when to ask the API server about the VMI; Never if there is nothing
// to ask.
func (o *observation) confirmAt(r *Record) Mono {
	switch {
	case o.Confirm.Running || !o.Owner.unclear(r):
		return Never
	case r.ShuttingDown() && r.Shutdown.Cause == VMIDeleted:
		return Never // in mid-grace only whether the instance was given up matters
	case o.Confirm.Tries == 0:
		return 0
	default:
		return o.Confirm.Last.Add(confirmRetry)
	}
}

// nodeFenced ends an instance that was given up: the VM may run elsewhere.
func nodeFenced(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	switch {
	case !o.Owner.givenUp(r):
		return next()
	case !r.ShuttingDown():
		return Decision{Do: Begin, Cause: NodeFenced, When: now}, true
	case r.Shutdown.Deadline > now:
		return Decision{Do: Shorten, Cause: NodeFenced, When: now}, true
	default:
		return next()
	}
}

func moved(r *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if r.ShuttingDown() || o.Owner.Fate != FateMoved || !o.Owner.missing(r) || o.Trigger {
		return next()
	}
	return do(Forget)
}
