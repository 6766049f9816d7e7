package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Timeouts.
const (
	// DetachTimeout is the default time, after the pod's grace period, for its end and for
	// the detaching of its volumes.
	DetachTimeout = 2 * time.Minute
	// ReattachTimeout is the default time for volumes to be attached to another node.
	ReattachTimeout = 90 * time.Second

	minRetryDelay   = time.Second
	maxRefusedDelay = 30 * time.Second
	maxErrorDelay   = 10 * time.Second
	// maxErrorsInQueue is the number of errors after which a pod leaves the queue.
	maxErrorsInQueue = 5
)

// Facts is the observed state at one time.
type Facts struct {
	Now time.Time
	// NodeGone means that the node does not exist any more, by a read from the API server,
	// not from a cache.
	NodeGone bool
	// Pods on the node, by UID. A pod that is missing is gone.
	Pods map[string]PodFacts
	// Claims is the number of the node's pods that have not ended, by claim.
	Claims map[string]int
	// Here and Elsewhere are the volumes attached to this node and to others, by name.
	Here, Elsewhere map[string]bool
}

// PodFacts is the observed state of one pod.
type PodFacts struct {
	Ended, Deleting bool
	// KillAt is the end of the grace period of a pod that is being deleted.
	KillAt time.Time
	// BudgetFree means that no budget that selects it refuses a disruption.
	BudgetFree bool
	VM         *VM
}

// Limits of a plan.
type Limits struct {
	// Pod is the time from a pod's accepted eviction to its end, and to the detaching of
	// its volumes; 0 = its grace period and DetachTimeout.
	Pod time.Duration
	// Reattach is the time for volumes to be attached to another node.
	Reattach time.Duration
	// DeleteAfter is the number of evictions refused by disruption budgets after which a
	// pod is deleted, 0 = none. It is not for pods of VMs.
	DeleteAfter int
}

// podTimeout returns the time for the pod's end, from its accepted eviction.
func (l *Limits) podTimeout(p *Pod) time.Duration {
	if l.Pod > 0 {
		return l.Pod
	}
	return p.Grace + DetachTimeout
}

// Deletes reports whether a pod is deleted after evictions that budgets have refused.
func (l *Limits) Deletes(p *Pod) bool {
	return l.DeleteAfter > 0 && !p.OfVM && !p.Launcher && !p.Hotplug
}

// Plan is the drain of one node. It is not safe for concurrent use.
type Plan struct {
	limits Limits
	all    []*entry // in the order of eviction
	gone   bool
}

// NewPlan returns a plan without pods.
func NewPlan(limits Limits) *Plan { return &Plan{limits: limits} }

// Add adds a pod to evict. A pod of the plan, by UID, is not changed.
func (p *Plan) Add(pod *Pod) {
	if p.find(pod.UID) != nil {
		return
	}
	e := &entry{pod: *pod, state: StateWaiting, last: PodFacts{Ended: pod.Ended}, attached: map[string]bool{}}
	if pod.Policy == WaitCompleted {
		e.state, e.reason = StateCompleting, "it has the label "+PolicyLabel+"="+string(WaitCompleted)
	}
	p.all = append(p.all, e)
	slices.SortStableFunc(p.all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(b.pod.Priority, a.pod.Priority), cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
}

// Next takes the facts, and returns the pods to evict now. again is when to call it again
// if nothing changes, zero for never. The caller has to call Answer for each returned pod.
func (p *Plan) Next(f *Facts) (evict []Pod, again time.Time) {
	if p.gone = f.NodeGone; p.gone {
		for _, e := range p.all {
			e.set(StateDrained, "the node is gone")
		}
		return nil, time.Time{}
	}
	for _, e := range p.all {
		e.observe(f, &p.limits)
	}
	busy := slices.ContainsFunc(p.all, (*entry).holdsQueue)
	for _, e := range p.all {
		turn := e.state == StateWaiting && (!e.queued() || !busy) || e.state == StateBlocked || e.state == StateMoving
		if !turn {
			continue
		}
		if e.state == StateWaiting && e.queued() {
			busy = true // also while it waits for its next request
		}
		if !e.due.After(f.Now) {
			e.before, e.state = e.state, StateEvicting
			pod := e.pod
			pod.Delete = p.limits.Deletes(&pod) && e.refused >= p.limits.DeleteAfter
			evict = append(evict, pod)
		}
	}
	return evict, p.again(f.Now)
}

// again returns the next time at which something is due, zero if nothing is.
func (p *Plan) again(now time.Time) (t time.Time) {
	for _, e := range p.all {
		if !e.state.Final() && e.due.After(now) && (t.IsZero() || e.due.Before(t)) {
			t = e.due
		}
	}
	return t
}

// Answer takes the API server's answer for a pod that Next returned. Answers for other
// pods are ignored.
func (p *Plan) Answer(uid string, a Answer, now time.Time) {
	e := p.find(uid)
	if e == nil || e.state != StateEvicting {
		return
	}
	e.tries++
	if a.ByBudget && p.limits.Deletes(&e.pod) {
		e.refused++
		a.Verdict = Blocked
	}
	switch a.Verdict {
	case Accepted:
		e.set(StateTerminating, a.Reason)
		if e.refused > 0 && e.refused >= p.limits.DeleteAfter {
			e.reason = fmt.Sprintf("deleted after %d refused evictions", e.refused)
		}
		e.due = now.Add(p.limits.podTimeout(&e.pod))
	case Failed:
		e.set(StateFailed, a.Reason)
	case Moving:
		e.set(StateMoving, a.Reason)
		e.leftQueue, e.due = true, now.Add(backoff(e.tries, maxRefusedDelay))
	case Blocked:
		e.set(StateBlocked, a.Reason)
		e.leftQueue, e.due = true, now.Add(backoff(e.tries, maxRefusedDelay))
	case Retry:
		e.set(e.before, a.Reason)
		e.due = now.Add(backoff(e.tries, maxErrorDelay))
		if e.tries >= maxErrorsInQueue && e.state == StateWaiting {
			e.state, e.leftQueue = StateBlocked, true
		}
	}
}

// Backoff returns the time until what has failed so often is tried again.
func Backoff(tries int) time.Duration { return backoff(tries, maxRefusedDelay) }

func backoff(tries int, most time.Duration) time.Duration {
	return min(minRetryDelay<<min(tries-1, 6), most)
}

func (p *Plan) find(uid string) *entry {
	for _, e := range p.all {
		if e.pod.UID == uid {
			return e
		}
	}
	return nil
}

// Done reports whether each pod is drained or failed.
func (p *Plan) Done() bool {
	return !slices.ContainsFunc(p.all, func(e *entry) bool { return !e.state.Final() })
}

// NodeGone reports whether the node was deleted.
func (p *Plan) NodeGone() bool { return p.gone }

// Left returns the pods that are not drained, in order. The drain succeeded if the
// plan is Done and Left is empty.
func (p *Plan) Left() (left []Status) {
	for _, s := range p.Status() {
		if s.State != StateDrained {
			left = append(left, s)
		}
	}
	return left
}

// Status returns the state of each pod, in order.
func (p *Plan) Status() []Status {
	all := make([]Status, 0, len(p.all))
	for _, e := range p.all {
		s := Status{Pod: e.pod, State: e.state, Reason: e.reason, Warning: e.warning, Percent: -1}
		if s.State == StateEvicting && e.leftQueue {
			s.State = e.before // a retry, which is no change for the user
		}
		if vm := e.last.VM; vm != nil && s.State == StateMoving {
			s.Percent, s.Reason = vm.Percent, cmp.Or(vm.Progress, s.Reason)
		}
		all = append(all, s)
	}
	return all
}

// after says that something has lasted for d.
func after(d time.Duration, what string) string { return fmt.Sprintf("%s after %v", what, d) }
