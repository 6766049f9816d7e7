package grace

// NodeShutdownTime is what a shutdown of the machine leaves its VMs: from Begin, when
// the agent heard of it, until End, when the machine goes down whatever still
// runs. The zero value is none.
type NodeShutdownTime struct{ Begin, End Mono }

// UnderWay tells whether the machine shuts down.
func (n NodeShutdownTime) UnderWay() bool { return n != NodeShutdownTime{} }

// SeeNode is told that the machine shuts down, or, with the zero value, that it
// does not any more. VMs whose shutdown has begun by then finish it.
func (v *VM) SeeNode(n NodeShutdownTime) { v.obs.Node = n }

// nodeLatest is the latest deadline that leaves QEMU its destroy timeout before the
// machine goes down; Never while the machine does not shut down.
func (o *Observation) nodeLatest(p *Policy) Mono {
	if !o.Node.UnderWay() {
		return Never
	}
	return o.Node.End.Add(-p.DestroyTimeout)
}

// nodeEnds: what the machine's shutdown leaves may be less than the grace period.
func nodeEnds(r *Record, o *Observation, p *Policy, now Mono) (Decision, bool) {
	latest := max(o.nodeLatest(p), now)
	if !r.ShuttingDown() || latest >= r.Shutdown.Deadline {
		return next()
	}
	return Decision{Do: Shorten, Cause: NodeShutdown, When: latest}, true
}
