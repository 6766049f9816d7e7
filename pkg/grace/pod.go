package grace

import (
	"cmp"
	"slices"
	"time"
)

// Pod is a launcher pod of this node as the watch shows it.
type Pod struct {
	UID, VMI      string // VMI: the UID of the one it was created for
	Created       time.Time
	Done          bool // its containers have ended and will not start again
	Deleting      bool
	DeletingAt    Mono          // when that was first seen
	DeletionGrace time.Duration // from its deletion to its kill
	KillAt        Mono          // the earliest kill time that an update of its deletion gave
	GracePeriod   time.Duration // spec.terminationGracePeriodSeconds
	// Holdable tells whether its shutdown may be held, for some reasons. HoldReason is
	// such a reason for its deletion, "" if none is known.
	Holdable   bool
	HoldReason Cause
	// Reserve is what the shutdown needs. Padding is its part beyond the grace period.
	// Allowance is how long it may be held at most. Each is 0 if not stated.
	Reserve, Padding, Allowance time.Duration
	Priority                    int32
}

// SeePods takes the launcher pods that the watch shows now.
func (v *VM) SeePods(pods []Pod) {
	v.pods = pods
	v.choosePod()
	shown := slices.ContainsFunc(pods, func(p Pod) bool { return p.UID == v.obs.Pod.UID })
	if !shown && v.obs.Shim == shimAlive {
		v.DirectoryChanged() // it lives, or its end was not seen
	}
}

// choosePod picks the launcher. A recorded one that lives stays, whatever pods are made
// beside it: whoever may create pods can copy a launcher's labels. During a shutdown or a
// hold it is the recorded one. Otherwise it is the newest that lives and was made for
// this VM.
func (v *VM) choosePod() {
	o, r := &v.obs, &v.rec
	uid, created := o.Owner.Is(r)
	if !o.Recorded && created.IsZero() {
		uid = "" // only the launcher that was chosen before claims it
	}
	madeFor := func(p Pod) bool { return p.VMI == "" || uid == "" || p.VMI == uid }
	recorded, _ := shownAs(v.pods, Pod{UID: r.Pod})
	candidates := slices.DeleteFunc(slices.Clone(v.pods), func(p Pod) bool { return !madeFor(p) })
	current, shown := shownAs(v.pods, o.Pod)
	mine := madeFor(current) || o.Recorded && current.VMI == o.Owner.endedUID()
	switch {
	case o.ending():
		o.Pod = current // the end is reported to it, whichever pod comes next
	case r.ShuttingDown() || r.Hold.UnderWay():
		o.Pod = recorded
	case mine && o.keeps(r, &current) && o.launcherLives(&current, shown):
		o.Pod = current
	case len(candidates) == 0:
		o.Pod = recorded
	default:
		o.Pod = slices.MaxFunc(candidates, func(a, b Pod) int {
			return cmp.Or(a.rank()-b.rank(), a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
		})
	}
}

// ending reports whether an end, or that no domain came, is being found out or reported.
func (o *observation) ending() bool { return o.Ending != nil || o.Recorded && o.Gone }

// keeps reports whether a launcher that lives keeps its place: the recorded one
// always, another one if it says for which VMI it was made.
func (o *observation) keeps(r *Record, p *Pod) bool {
	return p.UID != "" && (p.VMI != "" || o.Recorded && p.UID == r.Pod)
}

// shownAs returns the pod as shown, or as known if it is not shown.
func shownAs(pods []Pod, known Pod) (Pod, bool) {
	for _, p := range pods {
		if p.UID == known.UID && p.UID != "" {
			return p, true
		}
	}
	return known, false
}

// follow switches to the launcher directory of the pod that has become the launcher.
func follow(_ *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if o.Pod.UID == o.Followed {
		return next()
	}
	return do(Follow)
}

// podMargin is what a launcher pod needs beyond the grace period and
// --destroy-timeout.
const podMargin = 5 * time.Second

// PodNeeds is how long a launcher pod must live on for the VM's grace period.
func (v *VM) PodNeeds() time.Duration { return v.obs.podNeeds(v.policy) }

func (o *observation) podNeeds(p *Policy) time.Duration {
	return min(o.Period.Length+p.DestroyTimeout+podMargin, MaxPeriod) // no pod lives on for longer
}

// podTooShort warns early that kubelet would kill the launcher too soon.
func podTooShort(r *Record, o *observation, p *Policy, _ Mono) (Decision, bool) {
	pod := &o.Pod
	_, created := o.Owner.Is(r)
	known := !pod.Created.IsZero() // not from the record alone
	if created.IsZero() || !known || pod.Deleting || pod.Done || pod.GracePeriod >= o.podNeeds(p) || o.WarnedPod == pod.UID {
		return next()
	}
	return do(WarnOfPod)
}

// launcherLives reports whether the launcher p has a running container, as far as is
// known.
func (o *observation) launcherLives(p *Pod, shown bool) bool {
	switch {
	case shown && p.Done:
		return false
	case o.Shim == shimAlive || !o.Looked:
		return true
	default:
		return shown && !p.Deleting
	}
}

// rank puts a pod that names no VMI below every pod that names one.
func (p *Pod) rank() int {
	score := 2
	switch {
	case p.Done:
		score = 0
	case p.Deleting:
		score = 1
	}
	if p.VMI != "" {
		score += 3
	}
	return score
}

// podLag is how long after kubelet the agent may see a pod's deletion. A signal that came earlier
// was for another reason, such as a liveness probe.
const podLag = 10 * time.Second

// podKillAt returns when kubelet kills the launcher. The pod's grace period runs from
// kubelet's signal, which may be seen before the pod's deletion. Where the cause of that signal is
// in doubt, the later time counts: a kill that comes too early costs a guest its grace period.
func (o *observation) podKillAt() Mono {
	p := &o.Pod
	signalled := o.TriggerAt.Add(p.DeletionGrace)
	switch {
	case !o.Trigger || !o.TriggerByShim || !p.Deleting:
		return p.KillAt
	case p.KillAt <= o.TriggerAt:
		return signalled // kubelet was away: the expected kill did not happen
	case p.DeletingAt.Sub(o.TriggerAt) > podLag, p.KillAt != p.DeletingAt.Add(p.DeletionGrace):
		return p.KillAt // the signal was not for this deletion, or a later one has shortened the grace period
	default:
		return min(p.KillAt, signalled)
	}
}

// podKilled moves the deadline before kubelet's kill of the launcher, whose own grace
// period may be shorter than the VM's. A pod that has ended is not killed: kubelet
// removes it with a grace period of 0, as it does if no container ever ran.
func podKilled(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	s := &r.Shutdown
	if !r.ShuttingDown() || !o.Pod.Deleting || o.Pod.Done || o.Node.maybe() || s.Deadline <= now {
		return next()
	}
	kill := o.podKillAt()
	if kill >= s.Deadline {
		return next()
	}
	return Decision{Do: Shorten, When: max(now, kill.Add(-killMargin))}, true
}
