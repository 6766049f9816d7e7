package drain

import (
	"slices"
	"strings"
	"time"
)

// State is where a pod is on its way.
type State string

// States. Drained and Failed are final.
const (
	StateWaiting     State = "Waiting"     // for its turn
	StateCompleting  State = "Completing"  // not evicted, until it ends by itself
	StateEvicting    State = "Evicting"    // a request is under way
	StateMoving      State = "Moving"      // its VM moves to another node
	StateBlocked     State = "Blocked"     // refused for now
	StateTerminating State = "Terminating" // evicted, not gone
	StateDetaching   State = "Detaching"   // gone, its volumes still attached here
	StateReattaching State = "Reattaching" // its volumes not yet attached elsewhere
	StateDrained     State = "Drained"
	StateFailed      State = "Failed"
)

// Final tells whether nothing follows.
func (s State) Final() bool { return s == StateDrained || s == StateFailed }

// Status is how it stands with a pod.
type Status struct {
	Pod     Pod
	State   State
	Reason  string
	Warning string
	// Percent of its VM's migration, -1 where there is none.
	Percent int
}

// entry is a pod of a plan.
type entry struct {
	pod             Pod
	state           State
	before          State // of the request that is under way
	reason, warning string
	tries           int
	due             time.Time // the next request, or the end of a wait; zero: neither
	left            bool      // it left the line
	looked          bool      // at what is attached
	ended, free     bool      // as last seen
	vm              *VM
	attached        map[string]bool // its volumes that were seen attached here
}

// to changes the state.
func (e *entry) to(s State, reason string) { e.state, e.reason = s, reason }

// queued tells whether it goes one after the other: it has volumes that are
// attached to the node, and no eviction was refused.
func (e *entry) queued() bool { return len(e.attached) > 0 && !e.left }

// holdsLine tells whether the next pod with volumes waits for this one.
func (e *entry) holdsLine() bool {
	return e.queued() &&
		slices.Contains([]State{StateEvicting, StateTerminating, StateDetaching, StateReattaching}, e.state)
}

// look takes what is seen.
func (e *entry) look(f *Facts, reattach time.Duration) {
	seen, there := f.Pods[e.pod.UID]
	// The first look also counts for one that has ended since it was chosen.
	if there || !e.looked {
		for _, v := range e.pod.Volumes {
			if f.Here[v.Name] {
				e.attached[v.Name] = true
			}
		}
	}
	e.looked = true
	switch e.state {
	case StateCompleting:
		if !there || seen.Ended {
			e.leave(f.Now)
			e.ended = true
		}
	case StateWaiting, StateBlocked, StateMoving:
		e.waits(f, seen)
	case StateTerminating:
		if !there {
			e.leave(f.Now)
		} else if e.queued() && !f.Now.Before(e.due) {
			e.to(StateFailed, after(e.pod.Grace+DetachTimeout, "it still terminates"))
		}
	default: // an answer is owed, or it is gone
	}
	if e.state == StateDetaching {
		e.detach(f, reattach)
	}
	if e.state == StateReattaching {
		e.follow(f, reattach)
	}
}

// waits looks at a pod that has not been evicted. What may change the answer has
// it asked again at once.
func (e *entry) waits(f *Facts, seen Seen) {
	if _, there := f.Pods[e.pod.UID]; !there {
		e.leave(f.Now)
		return
	}
	if seen.Deleting && !e.pod.Launcher && !e.pod.Hurried {
		e.to(StateTerminating, "it was deleted already")
		e.due = f.Now.Add(e.pod.Grace + DetachTimeout)
		return
	}
	if e.state != StateWaiting && e.news(seen) {
		e.due = f.Now
	}
	e.ended, e.free, e.vm = seen.Ended, seen.BudgetFree, seen.VM
	if e.state == StateMoving && e.vm != nil && e.vm.Marked && e.vm.Stuck != "" {
		e.to(StateFailed, "VMI "+e.vm.Name+" cannot be moved: "+e.vm.Stuck)
	}
}

// news tells whether something has changed that may change the answer.
func (e *entry) news(seen Seen) bool {
	unmarked := e.vm != nil && e.vm.Marked && (seen.VM == nil || !seen.VM.Marked)
	return unmarked || seen.Ended && !e.ended || seen.BudgetFree && !e.free
}

// leave: the pod is gone, or has ended, and its volumes follow. They have what is left
// of the time for the pod's end, unless others have gone before it.
func (e *entry) leave(now time.Time) {
	if e.state != StateTerminating || e.left || e.due.Before(now) {
		e.due = now.Add(DetachTimeout)
	}
	e.to(StateDetaching, "")
}

// detach waits until no volume that only this pod used is attached here.
func (e *entry) detach(f *Facts, reattach time.Duration) {
	var still []string
	for _, v := range e.pod.Volumes {
		if e.attached[v.Name] && f.Here[v.Name] && f.Claims[v.Claim] == 0 {
			still = append(still, v.Claim)
		}
	}
	names := strings.Join(still, ", ")
	switch {
	case len(still) == 0:
		e.to(StateReattaching, "")
		e.due = f.Now.Add(reattach)
	case !f.Now.Before(e.due):
		e.to(StateFailed, "still attached to this node: "+names)
	default:
		e.reason = "attached here: " + names
	}
}

// follow waits until the volumes are attached elsewhere, if somebody makes the
// pod anew.
func (e *entry) follow(f *Facts, reattach time.Duration) {
	var still []string
	for _, v := range e.pod.Volumes {
		shared := f.Claims[v.Claim] > 0
		if e.attached[v.Name] && !v.Ephemeral && !shared && !f.Elsewhere[v.Name] {
			still = append(still, v.Claim)
		}
	}
	names := strings.Join(still, ", ")
	switch {
	case len(still) == 0 || e.pod.Controller == "" || e.ended:
		e.to(StateDrained, "")
	case !f.Now.Before(e.due):
		e.warning = after(reattach, "not attached to another node") + ": " + names
		e.to(StateDrained, "")
	default:
		e.reason = "not attached to another node yet: " + names
	}
}
