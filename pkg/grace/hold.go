package grace

import (
	"cmp"
	"time"
)

// Hold is a shutdown that a launcher's signal asked for and that waits, because the guest
// may be moved instead. The zero value is none. The wall clock times are for people; only
// the Mono ones count.
type Hold struct {
	// Reason is why the launcher pod is being deleted, "" until that is shown:
	// Kubernetes' reason, or LauncherSignal for any other deletion while a migration of
	// the VM is under way.
	Reason Cause
	Start  Mono
	// Until is when the hold ends at the latest. Once there is a reason it only becomes
	// earlier.
	Until     Mono
	StartedAt time.Time
	UntilAt   time.Time
	// Leaving is set once the VM was seen marked to leave this node, or migrating.
	Leaving bool
	// Moving is set once a migration of the VM was seen under way. If none is now, it has
	// failed.
	Moving bool
}

// UnderWay reports whether a shutdown is held.
func (h *Hold) UnderWay() bool { return *h != (Hold{}) }

// Shown returns the shutdown as people see it. While it is held, the cause is the reason
// and the deadline is the latest moment. It is zero while the VM is Running.
func (r *Record) Shown() Shutdown {
	h := &r.Hold
	if r.ShuttingDown() || !h.UnderWay() {
		return r.Shutdown
	}
	return Shutdown{
		Cause: cmp.Or(h.Reason, LauncherSignal), Start: h.Start, Deadline: h.Until, StartedAt: h.StartedAt, DeadlineAt: h.UntilAt,
	}
}

const (
	// reasonTimeout is how long the launcher pod may take to show that it is being
	// deleted, and why.
	reasonTimeout = 2 * time.Second
	// markTimeout is how long a VM may take to be marked.
	markTimeout = 5 * time.Second
	// moveAgain is the least time for another migration after one that failed: the
	// controller waits 20 s before it makes one.
	moveAgain = 30 * time.Second
)

// holds returns the current hold; false if there is none or it is over. A fact that is
// not seen now stays as last seen.
func (o *observation) holds(r *Record, now Mono) (h Hold, held bool) {
	h = r.Hold
	if !h.UnderWay() {
		if !o.Trigger {
			return Hold{}, false
		}
		h = Hold{Start: min(o.TriggerAt, now), Until: Never}
	}
	if _, deleted := o.Owner.deleted(r); deleted || o.Node.UnderWay() || o.Shim == shimDied {
		return Hold{}, false
	}
	if h.Reason == "" {
		h.Until = Never // the limit without a reason no longer binds
		if o.Pod.Deleting {
			h.Reason = o.holdReason(r)
		}
	}
	h.Leaving = h.Leaving || o.leaving(r)
	h.Moving = h.Moving || o.Migration == MigrationOutgoing
	h.Until = min(h.Until, o.latestHold(r, &h))
	return h, now < h.Until && !o.staysHere(r, &h, now)
}

// holdReason returns why a launcher that is being deleted may be held; "" if there is no
// reason, or none yet.
func (o *observation) holdReason(r *Record) Cause {
	switch {
	case o.holdable(r) && o.Pod.HoldReason != "":
		return o.Pod.HoldReason
	case o.Migration == MigrationOutgoing:
		return LauncherSignal
	default:
		return ""
	}
}

// holdable reports whether the launcher pod's shutdown may be held. After the agent's
// start, the record counts until the API server has shown the pod.
func (o *observation) holdable(r *Record) bool {
	return o.Pod.Holdable || o.Pod.Created.IsZero() && r.Holdable
}

// moving reports whether a migration of the VM away from here is under way. After the
// agent's start, the record counts until the migrations are known.
func (o *observation) moving(r *Record) bool {
	return o.Migration == MigrationOutgoing || o.Migration == MigrationUnknown && r.Moving
}

// leaving reports whether somebody is to move the VM, or does.
func (o *observation) leaving(r *Record) bool {
	v := o.Owner.current()
	return o.Migration == MigrationOutgoing || v.visible() && v.Marked && v.UID == r.UID
}

// latestHold returns the latest moment by what is known now. It leaves the guest its
// whole grace period before kubelet kills the launcher.
func (o *observation) latestHold(r *Record, h *Hold) Mono {
	pod, latest := &o.Pod, Never
	switch {
	case h.Reason == "":
		latest = o.reasonBy(r, h)
	case pod.Allowance > 0:
		latest = h.Start.Add(pod.Allowance)
	}
	// The grace period may have been edited since the reserve was stated.
	reserve := max(pod.Reserve, o.Period.Length+max(pod.Padding, killMargin))
	switch {
	case pod.Deleting:
		latest = min(latest, o.podKillAt().Add(-reserve))
	case !pod.Created.IsZero():
		latest = min(latest, h.Start.Add(pod.GracePeriod-reserve))
	}
	return latest
}

// reasonBy returns until when a reason may still be shown. A restarted agent waits for
// the API server's first lists if the record allows a reason: nobody has looked for it
// meanwhile.
func (o *observation) reasonBy(r *Record, h *Hold) Mono {
	switch {
	case o.Migration == MigrationOutgoing && !o.Pod.Deleting, o.holdable(r) && !o.Pod.Deleting:
		return max(h.Start.Add(reasonTimeout), o.OwnerBy)
	case o.moving(r): // a restarted agent does not know yet
		return o.OwnerBy
	default:
		return h.Start
	}
}

// staysHere reports whether nobody moves the VM, or not in time.
func (o *observation) staysHere(r *Record, h *Hold, now Mono) bool {
	v := o.Owner.current()
	switch {
	case h.Reason == "" || o.Migration == MigrationOutgoing:
		return false
	case h.Reason == LauncherSignal:
		return o.Migration == MigrationNone // nobody moves it again
	case !h.Leaving:
		return now >= h.Start.Add(markTimeout)
	case v.State == VMIPresent && v.UID == r.UID && !v.Marked:
		return true
	default:
		return o.moveFailed(h) && now.Add(moveAgain) > h.Until
	}
}

// moveFailed reports whether a migration away from here has ended and left the VM here.
func (o *observation) moveFailed(h *Hold) bool {
	return h.Moving && o.Migration == MigrationNone
}

// holdEnds returns when to look at the hold again without an event.
func (o *observation) holdEnds(r *Record) Mono {
	h := &r.Hold
	switch {
	case !h.UnderWay():
		return Never
	case h.Reason != "" && !h.Leaving:
		return min(h.Until, h.Start.Add(markTimeout))
	case o.moveFailed(h) && h.Reason != LauncherSignal:
		return min(h.Until, max(h.Until.Add(-moveAgain)+1, h.Start))
	default:
		return h.Until
	}
}

func holdShutdown(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if r.ShuttingDown() {
		return next()
	}
	h, yes := o.holds(r, now)
	if h.StartedAt, h.UntilAt = r.Hold.StartedAt, r.Hold.UntilAt; !yes || h == r.Hold {
		return next()
	}
	return Decision{Do: HoldShutdown, Cause: h.Reason, When: h.Start, Hold: h}, true
}

// hold copies a decided hold into the record. wall is the moment of its start.
func (r *Record) hold(h Hold, wall time.Time) {
	if h.StartedAt.IsZero() {
		h.StartedAt = wall.UTC().Truncate(time.Millisecond)
	}
	h.UntilAt = h.StartedAt.Add(h.Until.Sub(h.Start)).Truncate(time.Millisecond)
	r.Hold = h
}
