package replacement

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// VM is what is known of a VM that is on a tainted node, or was.
type VM struct {
	Namespace, Name, UID string
	Node                 string
	Strategy             kubevirt.EvictionStrategy // the one that counts
	Migratable           bool
	// Marked: it is to leave its node; Ours: because of a taint.
	Marked, Ours bool
	// Launcher: a pod of the VM runs on its node. Without one nobody knows what
	// it tolerates: nothing is decided.
	Launcher bool
	// Leaving: that pod is being deleted.
	Leaving bool
	// Tolerates the taints of its node without a time limit.
	Tolerates func(TaintID) bool
	// Replacing is since when the VM itself says that it is to be replaced; zero:
	// it does not.
	Replacing time.Time
}

// World is what was seen, at one time.
type World struct {
	Now          time.Time
	Policy       Policy
	Nodes        map[string]Node
	NodesWithVMs int
	VMs          []VM
}

// Progress is what is remembered of a VM.
type Progress struct {
	Node  string
	Cause TaintID   // the taint for which it is to be replaced, if it is
	Since time.Time // since when it is where its node is tainted
	// Replacing is since when it is to be replaced; zero: it is not.
	Replacing time.Time
	// Started is when it was decided to replace it now: persisted first.
	Started time.Time
	// Asked is when that was asked of the API server, Failed when it refused,
	// with Why.
	Asked, Failed time.Time
	Why           string
}

// State is what is remembered from one look to the next.
type State struct {
	Clocks Clocks
	VMs    map[string]Progress // by UID
}

// Reason why a VM is where it is.
type Reason string

// Reasons.
const (
	Tainted        Reason = "NodeTainted"         // its time has not come
	Notice         Reason = "Notice"              // to be replaced, not yet due
	Waiting        Reason = "WaitsForItsTurn"     // due; as many as allowed are under way
	TooMany        Reason = "TooManyTaintedNodes" // due; no VM is replaced
	NodeNotReady   Reason = "NodeNotReady"        // due; its node does not answer
	NotMigratable  Reason = "NotMigratable"       // it is to be migrated and cannot be: only said
	Refused        Reason = "EvictionRefused"     // the API server refuses, tried again
	InProgress     Reason = "InProgress"          // it is being replaced
	LeavesAnyway   Reason = "LeavesAnyway"        // somebody else has it moved or stopped
	NotKnown       Reason = "LauncherNotKnown"    // it has no launcher pod that is known
	NotOnTaintNode Reason = ""                    // its node has no taint that counts
)

// Action is what is to be done with a VM.
type Action string

// Actions.
const (
	Nothing Action = ""
	Mark    Action = "Mark"
	Evict   Action = "Evict"
	Unmark  Action = "Unmark"
)

// Verdict is what was decided for one VM.
type Verdict struct {
	VM     *VM
	Reason Reason
	Action Action
	// Detected and Replacing are the messages of its conditions; empty: it has
	// none. Keep leaves both as they are.
	Detected, Replacing string
	Keep                bool
	Cause               TaintID
	// Since is of the condition that counts, Due when the next thing happens to
	// the VM: zero if never.
	Since, Due time.Time
}

// Plan is what was decided.
type Plan struct {
	State State
	VMs   []Verdict // in the order in which they are replaced
	// TaintedNodes are those with VMs that a taint will have replaced, Allowed how
	// many there may be.
	TaintedNodes, Allowed int
	InFlight              int
	// Again is when to look again though nothing happened; 0 = no need to.
	Again time.Duration
}

// TooMany tells whether no VM is replaced because so many nodes are tainted.
func (p *Plan) TooMany() bool { return p.TaintedNodes > p.Allowed }

// How long the API server is waited for, and a refused eviction.
const (
	settle  = 5 * time.Second
	retryIn = 30 * time.Second
)

// Next decides for all VMs.
func Next(w World, before State) Plan {
	p := Plan{State: State{Clocks: w.Policy.run(before.Clocks, w.Nodes, w.Now), VMs: map[string]Progress{}}}
	p.Allowed = w.Policy.MaxTainted.Of(w.NodesWithVMs)
	tainted := map[string]bool{}
	for i := range w.VMs {
		v := w.look(&w.VMs[i], before, &p)
		if v.fires && !v.Keep {
			tainted[v.VM.Node] = true
		}
		p.VMs = append(p.VMs, v.Verdict)
	}
	p.TaintedNodes = len(tainted)
	slices.SortFunc(p.VMs, func(a, b Verdict) int { return p.inOrder(&a, &b) })
	w.choose(&p)
	p.again(w.Now)
	return p
}

// inOrder: what was started goes on, then the oldest.
func (p *Plan) inOrder(a, b *Verdict) int {
	x, y := p.State.VMs[a.VM.UID], p.State.VMs[b.VM.UID]
	return cmp.Or(
		-compareSet(x.Started, y.Started),
		-compareSet(x.Replacing, y.Replacing), x.Replacing.Compare(y.Replacing),
		x.Since.Compare(y.Since),
		cmp.Compare(a.VM.Namespace, b.VM.Namespace), cmp.Compare(a.VM.Name, b.VM.Name),
	)
}

func compareSet(a, b time.Time) int {
	switch {
	case a.IsZero() == b.IsZero():
		return 0
	case a.IsZero():
		return -1
	default:
		return 1
	}
}

// choose decides which VMs that are due are replaced now.
func (w *World) choose(p *Plan) {
	for i := range p.VMs {
		if w.inFlight(p.State.VMs[p.VMs[i].VM.UID], p.VMs[i].VM) {
			p.InFlight++
		}
	}
	room := w.Policy.MaxConcurrent - p.InFlight
	for i := range p.VMs {
		v := &p.VMs[i]
		progress := p.State.VMs[v.VM.UID]
		if v.Reason != Notice || w.Now.Before(v.Due) {
			if !w.inFlight(progress, v.VM) && !v.Keep {
				progress.Started = time.Time{}
				p.remember(v.VM, progress)
			}
			continue
		}
		if w.due(p, v, progress, room) {
			room--
		}
	}
	for i := range p.VMs {
		p.VMs[i].say(p)
	}
}

// due decides for a VM that is due, and reports whether it takes a place of those that
// are free.
func (w *World) due(p *Plan, v *Verdict, progress Progress, room int) (takes bool) {
	has := w.inFlight(progress, v.VM)
	v.Reason, v.Action = w.decide(p, v, progress, room)
	switch {
	case v.Action == Nothing && v.Reason != InProgress:
		progress.Started = time.Time{}
	case v.Action != Nothing && progress.Started.IsZero():
		progress.Started = w.Now
	}
	p.remember(v.VM, progress)
	return v.Action != Nothing && takesRoom(v.VM) && !has
}

func (p *Plan) remember(v *VM, progress Progress) {
	if _, known := p.State.VMs[v.UID]; known {
		p.State.VMs[v.UID] = progress
	}
}

// decide decides for a VM that is due.
func (w *World) decide(p *Plan, v *Verdict, progress Progress, room int) (Reason, Action) {
	vm := v.VM
	switch {
	case w.stranded(progress, vm): // as one that is not marked; it has its place
		room++
	case w.inFlight(progress, vm), vm.Marked && vm.Ours:
		return InProgress, Nothing
	case vm.Marked, vm.Leaving:
		return LeavesAnyway, Nothing
	}
	if why := w.blocked(p, vm, progress, room); why != NotOnTaintNode {
		return why, Nothing
	}
	if w.asked(progress) {
		return InProgress, Nothing
	}
	return InProgress, how(vm)
}

// blocked says why a VM that is due has to stay, or is empty.
func (w *World) blocked(p *Plan, vm *VM, progress Progress, room int) Reason {
	switch {
	case onlySaid(vm):
		return NotMigratable
	case p.TooMany():
		return TooMany
	case !w.Nodes[vm.Node].Ready:
		return NodeNotReady
	case w.Now.Before(progress.Failed.Add(retryIn)) && !progress.Failed.After(w.Now):
		return Refused
	case w.Policy.MaxConcurrent == 0, room <= 0 && takesRoom(vm):
		return Waiting
	}
	return NotOnTaintNode
}

// again is when the next thing happens by time alone.
func (p *Plan) again(now time.Time) {
	at := func(t time.Time) {
		if left := t.Sub(now); left > 0 && (p.Again == 0 || left < p.Again) {
			p.Again = left
		}
	}
	for i := range p.VMs {
		v := &p.VMs[i]
		progress := p.State.VMs[v.VM.UID]
		if !v.Due.IsZero() {
			at(v.Due)
		}
		if !progress.Failed.IsZero() {
			at(progress.Failed.Add(retryIn))
		}
		if !progress.Asked.IsZero() {
			at(progress.Asked.Add(settle))
		}
	}
}
