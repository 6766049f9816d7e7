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

// HoldFacts is what decides whether a shutdown is held. A fact that is not seen now is given
// as last seen.
type HoldFacts struct {
	// Signalled means that the launcher was signalled, at SignalledAt.
	Signalled   bool
	SignalledAt Mono
	// Over means that nothing holds the shutdown any more: its VMI is deleted, the node shuts
	// down, or the launcher has died.
	Over bool
	// Pod is the launcher pod. Holdable tells whether its shutdown may be held. KillAt is when
	// kubelet kills it, while it is being deleted.
	Pod      Pod
	Holdable bool
	KillAt   Mono
	// ReasonTimeout is how long the pod may take to show that it is being deleted, and why.
	// ListedBy is until when a restarted agent waits for the API server's first lists, at least.
	ReasonTimeout time.Duration
	ListedBy      Mono
	// Period is the VM's grace period.
	Period time.Duration
	// Migration is the VM's. Moving means that a migration away from here is under way, or was
	// when nobody could see it any more.
	Migration Migration
	Moving    bool
	// Marked means that somebody is to move the VM. Unmarked means that nobody is: the API server
	// shows the VM without a mark.
	Marked, Unmarked bool
}

// Next returns the hold h as it is now; false if there is none or it is over.
func (f *HoldFacts) Next(h Hold, now Mono) (next Hold, held bool) {
	if !h.UnderWay() {
		if !f.Signalled {
			return Hold{}, false
		}
		h = Hold{Start: min(f.SignalledAt, now), Until: Never}
	}
	if f.Over {
		return Hold{}, false
	}
	if h.Reason == "" {
		h.Until = Never // the limit without a reason no longer binds
		if f.Pod.Deleting {
			h.Reason = f.reason()
		}
	}
	h.Leaving = h.Leaving || f.Migration == MigrationOutgoing || f.Marked
	h.Moving = h.Moving || f.Migration == MigrationOutgoing
	h.Until = min(h.Until, f.latest(&h))
	return h, now < h.Until && !f.staysHere(&h, now)
}

// Ends returns when to look at the hold again without an event.
func (f *HoldFacts) Ends(h *Hold) Mono {
	switch {
	case !h.UnderWay():
		return Never
	case h.Reason != "" && !h.Leaving:
		return min(h.Until, h.Start.Add(markTimeout))
	case f.moveFailed(h) && h.Reason != LauncherSignal:
		return min(h.Until, max(h.Until.Add(-moveAgain)+1, h.Start))
	default:
		return h.Until
	}
}

// reason returns why a launcher that is being deleted may be held; "" if there is no reason,
// or none yet.
func (f *HoldFacts) reason() Cause {
	switch {
	case f.Holdable && f.Pod.HoldReason != "":
		return f.Pod.HoldReason
	case f.Migration == MigrationOutgoing:
		return LauncherSignal
	default:
		return ""
	}
}

// latest returns the latest moment by what is known now. It leaves the guest its whole grace
// period before kubelet kills the launcher.
func (f *HoldFacts) latest(h *Hold) Mono {
	pod, latest := &f.Pod, Never
	switch {
	case h.Reason == "":
		latest = f.reasonBy(h)
	case pod.Allowance > 0:
		latest = h.Start.Add(pod.Allowance)
	}
	// The grace period may have been edited since the reserve was stated.
	reserve := max(pod.Reserve, f.Period+max(pod.Padding, killMargin))
	switch {
	case pod.Deleting:
		latest = min(latest, f.KillAt.Add(-reserve))
	case !pod.Created.IsZero():
		latest = min(latest, h.Start.Add(pod.GracePeriod-reserve))
	}
	return latest
}

// reasonBy returns until when a reason may still be shown. A restarted agent waits for the API
// server's first lists if a reason is allowed: nobody has looked for it meanwhile.
func (f *HoldFacts) reasonBy(h *Hold) Mono {
	switch {
	case !f.Pod.Deleting && (f.Migration == MigrationOutgoing || f.Holdable):
		return max(h.Start.Add(f.ReasonTimeout), f.ListedBy)
	case f.Moving: // a restarted agent does not know yet
		return f.ListedBy
	default:
		return h.Start
	}
}

// staysHere reports whether nobody moves the VM, or not in time.
func (f *HoldFacts) staysHere(h *Hold, now Mono) bool {
	switch {
	case h.Reason == "" || f.Migration == MigrationOutgoing:
		return false
	case h.Reason == LauncherSignal:
		return f.Migration == MigrationNone // nobody moves it again
	case !h.Leaving:
		return now >= h.Start.Add(markTimeout)
	case f.Unmarked:
		return true
	default:
		return f.moveFailed(h) && now.Add(moveAgain) > h.Until
	}
}

// moveFailed reports whether a migration away from here has ended and left the VM here.
func (f *HoldFacts) moveFailed(h *Hold) bool {
	return h.Moving && f.Migration == MigrationNone
}

// Told returns the hold with the times for people. wall is the moment of its start.
func (h Hold) Told(wall time.Time) Hold {
	if h.StartedAt.IsZero() {
		h.StartedAt = wall.UTC().Truncate(time.Millisecond)
	}
	h.UntilAt = h.StartedAt.Add(h.Until.Sub(h.Start)).Truncate(time.Millisecond)
	return h
}

// holdFacts returns the facts about a hold that are seen of a VM.
func (o *observation) holdFacts(r *Record) HoldFacts {
	v := o.Owner.current()
	_, deleted := o.Owner.deleted(r)
	mine := v.UID == r.UID
	return HoldFacts{
		Signalled: o.Trigger, SignalledAt: o.TriggerAt,
		Over: deleted || o.Node.UnderWay() || o.Shim == shimDied,
		Pod:  o.Pod, Holdable: o.holdable(r), KillAt: o.podKillAt(),
		ReasonTimeout: reasonTimeout, ListedBy: o.OwnerBy, Period: o.Period.Length,
		Migration: o.Migration, Moving: o.moving(r),
		Marked: mine && v.visible() && v.Marked, Unmarked: mine && v.State == VMIPresent && !v.Marked,
	}
}

// holds returns the current hold; false if there is none or it is over.
func (o *observation) holds(r *Record, now Mono) (h Hold, held bool) {
	if !r.Hold.UnderWay() && !o.Trigger {
		return Hold{}, false
	}
	facts := o.holdFacts(r)
	return facts.Next(r.Hold, now)
}

// holdEnds returns when to look at the hold again without an event.
func (o *observation) holdEnds(r *Record) Mono {
	if !r.Hold.UnderWay() {
		return Never
	}
	facts := o.holdFacts(r)
	return facts.Ends(&r.Hold)
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
