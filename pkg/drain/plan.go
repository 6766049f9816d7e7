package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Bounds of waiting.
const (
	// DetachTimeout and the pod's grace period are for its end and the detaching
	// of its volumes.
	DetachTimeout = 2 * time.Minute
	// ReattachTimeout is the default for volumes to be attached elsewhere.
	ReattachTimeout = 90 * time.Second

	firstRetry   = time.Second
	longestRetry = 30 * time.Second
	longestError = 10 * time.Second
	// inLine is how many errors a pod keeps its place for.
	inLine = 5
)

// Facts are what is seen at one moment.
type Facts struct {
	Now time.Time
	// NodeGone: the API server said so itself.
	NodeGone bool
	// Pods are those on the node, by UID. One that is not in it is gone.
	Pods map[string]Seen
	// Claims counts the pods of the node that have not ended, by claim.
	Claims map[string]int
	// Here and Elsewhere are the volumes that are attached, by name.
	Here, Elsewhere map[string]bool
}

// Seen is what changes of a pod.
type Seen struct {
	Ended, Deleting bool
	// BudgetFree: a budget that selects it lets a pod go.
	BudgetFree bool
	VM         *VM
}

// Plan is a drain of one node. It belongs to one goroutine.
type Plan struct {
	reattach time.Duration
	all      []*entry // in the order in which they go
	gone     bool
}

// NewPlan makes a plan without pods. reattach bounds the wait for volumes to be
// attached elsewhere.
func NewPlan(reattach time.Duration) *Plan { return &Plan{reattach: reattach} }

// Add adds a pod that has to go. One that is there already is left as it is.
func (p *Plan) Add(pod *Pod) {
	if p.find(pod.UID) != nil {
		return
	}
	e := &entry{pod: *pod, state: StateWaiting, ended: pod.Ended, attached: map[string]bool{}}
	if pod.Policy == WaitCompleted {
		e.state, e.reason = StateCompleting, "it has the label "+PolicyLabel+"="+string(WaitCompleted)
	}
	p.all = append(p.all, e)
	slices.SortStableFunc(p.all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(b.pod.Priority, a.pod.Priority), cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
}

// Next takes what is seen, and returns the pods to evict now and when to be asked
// again if nothing changes; zero is never. Each returned pod is owed an Answer.
func (p *Plan) Next(f *Facts) (evict []Pod, again time.Time) {
	if p.gone = f.NodeGone; p.gone {
		for _, e := range p.all {
			e.to(StateDrained, "the node is gone")
		}
		return nil, time.Time{}
	}
	for _, e := range p.all {
		e.look(f, p.reattach)
	}
	busy := slices.ContainsFunc(p.all, (*entry).holdsLine)
	for _, e := range p.all {
		turn := e.state == StateWaiting && (!e.queued() || !busy) || e.state == StateBlocked || e.state == StateMoving
		if !turn {
			continue
		}
		if e.state == StateWaiting && e.queued() {
			busy = true // also while it waits for its next try
		}
		if !e.due.After(f.Now) {
			e.before, e.state = e.state, StateEvicting
			evict = append(evict, e.pod)
		}
	}
	return evict, p.again(f.Now)
}

// again is the next time at which something is due, zero where nothing is.
func (p *Plan) again(now time.Time) (t time.Time) {
	for _, e := range p.all {
		if !e.state.Final() && e.due.After(now) && (t.IsZero() || e.due.Before(t)) {
			t = e.due
		}
	}
	return t
}

// Answer takes what the API server answered about a pod that Next returned.
func (p *Plan) Answer(uid string, a Answer, now time.Time) {
	e := p.find(uid)
	if e == nil || e.state != StateEvicting {
		return
	}
	e.tries++
	switch a.Verdict {
	case Accepted:
		e.to(StateTerminating, a.Reason)
		e.due = now.Add(e.pod.Grace + DetachTimeout)
	case Failed:
		e.to(StateFailed, a.Reason)
	case Moving:
		e.to(StateMoving, a.Reason)
		e.left, e.due = true, now.Add(backoff(e.tries, longestRetry))
	case Blocked:
		e.to(StateBlocked, a.Reason)
		e.left, e.due = true, now.Add(backoff(e.tries, longestRetry))
	case Retry:
		e.to(e.before, a.Reason)
		e.due = now.Add(backoff(e.tries, longestError))
		if e.tries >= inLine && e.state == StateWaiting {
			e.state, e.left = StateBlocked, true
		}
	}
}

func backoff(tries int, most time.Duration) time.Duration {
	return min(firstRetry<<min(tries-1, 6), most)
}

func (p *Plan) find(uid string) *entry {
	for _, e := range p.all {
		if e.pod.UID == uid {
			return e
		}
	}
	return nil
}

// Done tells whether nothing is left to wait for: each pod is drained or failed.
func (p *Plan) Done() bool {
	return !slices.ContainsFunc(p.all, func(e *entry) bool { return !e.state.Final() })
}

// NodeGone tells whether the node went away.
func (p *Plan) NodeGone() bool { return p.gone }

// Left are the pods that are not drained, in order. Only an empty Left of a plan
// that is Done is success.
func (p *Plan) Left() (left []Status) {
	for _, s := range p.Status() {
		if s.State != StateDrained {
			left = append(left, s)
		}
	}
	return left
}

// Status is how it stands with each pod, in order.
func (p *Plan) Status() []Status {
	all := make([]Status, 0, len(p.all))
	for _, e := range p.all {
		s := Status{Pod: e.pod, State: e.state, Reason: e.reason, Warning: e.warning, Percent: -1}
		if s.State == StateEvicting && e.left {
			s.State = e.before // asked again: nothing that somebody waits to see
		}
		if e.vm != nil && s.State == StateMoving {
			s.Percent = e.vm.Percent
			if e.vm.Progress != "" {
				s.Reason = e.vm.Progress
			}
		}
		all = append(all, s)
	}
	return all
}

func after(d time.Duration, what string) string { return fmt.Sprintf("%s after %v", what, d) }
