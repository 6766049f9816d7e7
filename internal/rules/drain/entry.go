package drain

import (
	"slices"
	"strings"
	"time"
)

// State is the progress of one pod of a plan.
type State string

// States. Drained and Failed are final.
const (
	StateWaiting     State = "Waiting"     // not evicted yet: another pod of the queue comes first
	StateCompleting  State = "Completing"  // not evicted: the drain waits until it has ended
	StateEvicting    State = "Evicting"    // an eviction request is under way
	StateMoving      State = "Moving"      // its VM is being migrated to another node
	StateBlocked     State = "Blocked"     // the eviction was refused for now
	StateTerminating State = "Terminating" // evicted, still exists
	StateDetaching   State = "Detaching"   // gone, its volumes still attached to this node
	StateReattaching State = "Reattaching" // its volumes not yet attached to another node
	StateDrained     State = "Drained"
	StateFailed      State = "Failed"
)

// Final reports whether the state does not change any more.
func (s State) Final() bool { return s == StateDrained || s == StateFailed }

// Status is the state of one pod for the user.
type Status struct {
	Pod     Pod
	State   State
	Reason  string
	Warning string
	// Percent is that of its VM's migration, -1 without one.
	Percent int
}

// entry is a pod of a plan.
type entry struct {
	pod             Pod
	state           State
	before          State // of the request that is under way
	reason, warning string
	tries           int             // answered requests
	refused         int             // evictions that only budgets have refused
	due             time.Time       // the next request, or the end of a wait; zero if neither
	leftQueue       bool            // its eviction was refused: other pods no longer wait for it
	observed        bool            // observe was called
	last            PodFacts        // when it was last pending
	attached        map[string]bool // its volumes that were attached to this node
}

func (e *entry) set(s State, reason string) { e.state, e.reason = s, reason }

// queued reports whether the pod is in the queue of pods that are evicted one after
// the other: volumes of it are attached to the node, and no eviction was refused.
func (e *entry) queued() bool { return len(e.attached) > 0 && !e.leftQueue }

// holdsQueue reports whether the next pod of the queue waits for this one.
func (e *entry) holdsQueue() bool {
	return e.queued() &&
		slices.Contains([]State{StateEvicting, StateTerminating, StateDetaching, StateReattaching}, e.state)
}

// observe takes the facts, and changes the state accordingly.
func (e *entry) observe(f *Facts, l *Limits) {
	pod, exists := f.Pods[e.pod.UID]
	// The first call also counts for a pod that has gone since Choose.
	if exists || !e.observed {
		for _, v := range e.pod.Volumes {
			if f.Here[v.Name] {
				e.attached[v.Name] = true
			}
		}
	}
	e.observed = true
	switch e.state {
	case StateCompleting:
		if !exists || pod.Ended {
			e.startDetaching(f.Now)
			e.last.Ended = true
		}
	case StateWaiting, StateBlocked, StateMoving:
		e.observePending(f, pod, l)
	case StateTerminating:
		if !exists {
			e.startDetaching(f.Now)
		} else if !f.Now.Before(e.due) {
			e.set(StateFailed, after(l.podTimeout(&e.pod), "it still terminates"))
		}
	default: // an answer is outstanding, or the pod is gone
	}
	if e.state == StateDetaching {
		e.checkDetached(f, l.Reattach)
	}
	if e.state == StateReattaching {
		e.checkReattached(f, l.Reattach)
	}
}

// observePending observes a pod that has not been evicted. A change that may change
// the answer to an eviction makes the next request due at once.
func (e *entry) observePending(f *Facts, pod PodFacts, l *Limits) {
	if _, exists := f.Pods[e.pod.UID]; !exists {
		e.startDetaching(f.Now)
		return
	}
	if pod.Deleting && !e.pod.Launcher && !e.pod.OverridesGrace {
		e.set(StateTerminating, "it was deleted already")
		e.due = f.Now.Add(l.podTimeout(&e.pod))
		if killed := pod.KillAt.Add(DetachTimeout); l.Pod == 0 && killed.After(e.due) {
			e.due = killed // it was deleted with a longer grace period than its own
		}
		return
	}
	if e.state != StateWaiting && e.mayChangeAnswer(pod) {
		e.due = f.Now
	}
	e.last = pod
	if vm := pod.VM; e.state == StateMoving && vm != nil && vm.Marked && vm.Stuck != "" {
		e.set(StateFailed, "VMI "+vm.Name+" cannot be moved: "+vm.Stuck)
	}
}

// mayChangeAnswer reports whether an eviction may get another answer now.
func (e *entry) mayChangeAnswer(pod PodFacts) bool {
	judged := e.last.VM != nil && !e.last.VM.Judged && pod.VM != nil && pod.VM.Judged
	unmarked := e.last.VM != nil && e.last.VM.Marked && (pod.VM == nil || !pod.VM.Marked)
	return judged || unmarked || pod.Ended && !e.last.Ended || pod.BudgetFree && !e.last.BudgetFree
}

// startDetaching begins the wait for the volumes of a pod that is gone, or has ended.
// A pod of the queue has one timeout for its end and the detaching. Any other pod gets
// a new timeout for the detaching.
func (e *entry) startDetaching(now time.Time) {
	if e.state != StateTerminating || e.leftQueue || e.due.Before(now) {
		e.due = now.Add(DetachTimeout)
	}
	e.set(StateDetaching, "")
}

// checkDetached waits until no volume that only this pod uses is attached to this
// node.
func (e *entry) checkDetached(f *Facts, reattach time.Duration) {
	var attached []string
	for _, v := range e.pod.Volumes {
		if e.attached[v.Name] && f.Here[v.Name] && f.Claims[v.Claim] == 0 {
			attached = append(attached, v.Claim)
		}
	}
	names := strings.Join(attached, ", ")
	switch {
	case len(attached) == 0:
		e.set(StateReattaching, "")
		e.due = f.Now.Add(reattach)
	case !f.Now.Before(e.due):
		e.set(StateFailed, "still attached to this node: "+names)
	default:
		e.reason = "attached here: " + names
	}
}

// checkReattached waits until the volumes are attached to another node, if the pod's
// controller replaces it there.
func (e *entry) checkReattached(f *Facts, reattach time.Duration) {
	var missing []string
	for _, v := range e.pod.Volumes {
		shared := f.Claims[v.Claim] > 0
		if e.attached[v.Name] && !v.Ephemeral && !shared && !f.Elsewhere[v.Name] {
			missing = append(missing, v.Claim)
		}
	}
	names := strings.Join(missing, ", ")
	switch {
	case len(missing) == 0 || e.pod.Controller == "" || e.last.Ended:
		e.set(StateDrained, "")
	case !f.Now.Before(e.due):
		e.warning = after(reattach, "not attached to another node") + ": " + names
		e.set(StateDrained, "")
	default:
		e.reason = "not attached to another node yet: " + names
	}
}
