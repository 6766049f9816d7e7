package grace

import (
	"maps"
	"slices"
	"time"
)

// NodeShutdownTime is the time that a shutdown of the node leaves its VMs. Begin is when
// the agent heard of it. End is when the node goes down, whatever still runs. The zero
// value is none.
type NodeShutdownTime struct {
	Begin, End Mono
	// Kept means that only an earlier agent has heard of it. It may be over, or called off: it
	// ends no VM, but may be why a launcher has died.
	Kept bool
}

// UnderWay reports whether the node shuts down.
func (n NodeShutdownTime) UnderWay() bool { return n != NodeShutdownTime{} && !n.Kept }

// maybe reports whether the node shuts down, or may.
func (n NodeShutdownTime) maybe() bool { return n != NodeShutdownTime{} }

// Told returns the shutdown after logind's word. It keeps its first end, unless that has passed
// before anybody confirmed it.
func (n NodeShutdownTime) Told(shutsDown bool, delay time.Duration, now Mono) NodeShutdownTime {
	switch {
	case !shutsDown:
		return NodeShutdownTime{}
	case n.UnderWay(), n.Kept && now < n.End:
		return NodeShutdownTime{Begin: n.Begin, End: n.End}
	default:
		return NodeShutdownTime{Begin: now, End: now.Add(delay)}
	}
}

// Lapsed reports whether the shutdown's end has passed while nobody can say that it goes on.
func (n NodeShutdownTime) Lapsed(known bool, now Mono) bool {
	return n.maybe() && !known && now >= n.End
}

// Turns returns the latest moment at which each VM is asked, by its name. VMs of a lower
// priority come first if there is time for one priority after the other. Otherwise all
// are asked at once. A turn comes sooner when no VM of a lower priority is left.
func (n NodeShutdownTime) Turns(vms map[string]Summary) map[string]Mono {
	longest := map[int32]time.Duration{}
	for _, vm := range vms {
		longest[vm.Priority] = max(longest[vm.Priority], vm.Needs)
	}
	turn, of := n.Begin, map[int32]Mono{}
	for _, priority := range slices.Sorted(maps.Keys(longest)) {
		of[priority] = turn
		turn = turn.Add(longest[priority])
	}
	turns := map[string]Mono{}
	for name, vm := range vms {
		turns[name] = of[vm.Priority]
		if turn > n.End {
			turns[name] = n.Begin
		}
	}
	return turns
}

// SeeNode takes the shutdown of the node; the zero value means that there is none any
// more. VMs whose shutdown has begun finish it. turn is when this VM is to be asked at
// the latest.
func (v *VM) SeeNode(n NodeShutdownTime, turn Mono) { v.obs.Node, v.obs.NodeTurn = n, turn }

// nodeTurn returns when to begin because the node shuts down; Never while it does not.
func (o *observation) nodeTurn() Mono {
	if !o.Node.UnderWay() {
		return Never
	}
	return max(o.Node.Begin, o.NodeTurn)
}

// nodeBegins reports whether the shutdown begins because the node shuts down: it is the
// VM's turn, or there is another cause that came later.
func (o *observation) nodeBegins(r *Record, now Mono) bool {
	deletedAt, deleted := o.Owner.deleted(r)
	if !o.Node.UnderWay() || deleted && deletedAt < o.Node.Begin || o.Trigger && o.TriggerAt < o.Node.Begin {
		return false
	}
	return now >= o.nodeTurn() || deleted || o.Trigger || o.Shim == shimDied
}

// nodeEndedLauncher reports whether the node's shutdown may have ended the launcher, even
// if it was called off since.
func (o *observation) nodeEndedLauncher(r *Record) bool {
	return o.Node.maybe() || o.DiedWithNode || r.Shutdown.Cause == NodeShutdown
}

// nodeLatest returns the latest deadline that leaves QEMU its destroy timeout before the
// node goes down; Never while the node does not shut down.
func (o *observation) nodeLatest(p *Policy) Mono {
	if !o.Node.UnderWay() {
		return Never
	}
	return o.Node.End.Add(-p.DestroyTimeout)
}

// nodeEnds shortens a grace period to what the node's shutdown leaves.
func nodeEnds(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	latest := max(o.nodeLatest(p), now)
	if !r.ShuttingDown() || latest >= r.Shutdown.Deadline {
		return next()
	}
	return Decision{Do: Shorten, Cause: NodeShutdown, When: latest}, true
}
