package grace

import (
	"maps"
	"slices"
	"time"
)

// NodeShutdownTime is what a shutdown of the node leaves its VMs: from Begin, when
// the agent heard of it, until End, when the node goes down whatever still
// runs. The zero value is none.
type NodeShutdownTime struct{ Begin, End Mono }

// UnderWay tells whether the node shuts down.
func (n NodeShutdownTime) UnderWay() bool { return n != NodeShutdownTime{} }

// Turns are the latest moments at which the VMs are asked, each by its name: those of
// a lower priority first, where there is time for one priority after the other; where
// not, all at once. A priority's turn comes sooner when no VM of a lower one is left.
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

// SeeNode is told that the node shuts down, or, with the zero value, that it
// does not any more. VMs whose shutdown has begun by then finish it. turn is when
// this VM is to be asked at the latest.
func (v *VM) SeeNode(n NodeShutdownTime, turn Mono) { v.obs.Node, v.obs.NodeTurn = n, turn }

// nodeTurn is when to begin because the node shuts down, Never while it does not.
func (o *observation) nodeTurn() Mono {
	if !o.Node.UnderWay() {
		return Never
	}
	return max(o.Node.Begin, o.NodeTurn)
}

// nodeBegins tells whether the shutdown begins because the node shuts down: it is
// the VM's turn, or it is to end for another reason that came later.
func (o *observation) nodeBegins(r *Record, now Mono) bool {
	deletedAt, deleted := o.Owner.deleted(r)
	if !o.Node.UnderWay() || deleted && deletedAt < o.Node.Begin || o.Trigger && o.TriggerAt < o.Node.Begin {
		return false
	}
	return now >= o.nodeTurn() || deleted || o.Trigger || o.Shim == shimDied
}

// nodeEndedLauncher: kubelet ends launchers, too, when the node shuts down. That
// stands when the shutdown is called off.
func (o *observation) nodeEndedLauncher(r *Record) bool {
	return o.Node.UnderWay() || o.DiedWithNode || r.Shutdown.Cause == NodeShutdown
}

// nodeLatest is the latest deadline that leaves QEMU its destroy timeout before the
// node goes down; Never while the node does not shut down.
func (o *observation) nodeLatest(p *Policy) Mono {
	if !o.Node.UnderWay() {
		return Never
	}
	return o.Node.End.Add(-p.DestroyTimeout)
}

// nodeEnds: what the node's shutdown leaves may be less than the grace period.
func nodeEnds(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	latest := max(o.nodeLatest(p), now)
	if !r.ShuttingDown() || latest >= r.Shutdown.Deadline {
		return next()
	}
	return Decision{Do: Shorten, Cause: NodeShutdown, When: latest}, true
}
