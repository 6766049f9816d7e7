package taints

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// VM is the state of a VM that is, or was, on a tainted node.
type VM struct {
	Namespace, Name, UID string
	Node                 string
	Strategy             kubevirt.EvictionStrategy // evacuation.StrategyOf the VMI
	Migratable           bool
	// Marked means that its evacuation is requested, Ours that a taint is the cause.
	Marked, Ours bool
	// Launcher means that its launcher pod on its node is known. Without it the tolerations
	// are unknown, and nothing is decided.
	Launcher bool
	// Leaving means that the launcher pod is being deleted.
	Leaving bool
	// Tolerates reports whether the launcher pod tolerates a taint without a time limit.
	Tolerates func(TaintID) bool
	// Replacing is the start of its condition NodeTaintReplacing, zero if it has none.
	Replacing time.Time
}

// World is the observed state at one time.
type World struct {
	Now          time.Time
	Policy       Policy
	Nodes        map[string]Node
	NodesWithVMs int
	VMs          []VM
}

// Progress is the persisted state of a VM.
type Progress struct {
	Node  string
	Cause TaintID   // the taint for which it is replaced, if it is
	Since time.Time // since when it is on its tainted node
	// Replacing is the start of the notice, zero if it is not replaced.
	Replacing time.Time
	// Started is when its replacement was decided. It is persisted before the request.
	Started time.Time
	// Asked is when the API server got the request, Failed when it refused, with Why. The
	// caller sets them.
	Asked, Failed time.Time
	Why           string
}

// State is passed from one call of Next to the next.
type State struct {
	Clocks Clocks
	VMs    map[string]Progress // by UID
}

// Reason of the verdict on a VM.
type Reason string

// Reasons.
const (
	Tainted        Reason = "NodeTainted"         // the duration is not over
	Notice         Reason = "Notice"              // the notice is not over
	Waiting        Reason = "WaitsForItsTurn"     // due; maxConcurrentReplacements are in flight
	TooMany        Reason = "TooManyTaintedNodes" // due; more nodes are tainted than maxTaintedNodes
	NodeNotReady   Reason = "NodeNotReady"        // due; its node is not Ready
	NotMigratable  Reason = "NotMigratable"       // due; LiveMigrate and not migratable: reported only
	Refused        Reason = "EvictionRefused"     // due; the API server refused the request, which is retried
	InProgress     Reason = "InProgress"          // it is being replaced
	LeavesAnyway   Reason = "LeavesAnyway"        // it is moved or stopped for another reason
	NotKnown       Reason = "LauncherNotKnown"    // its launcher pod is not known
	NotOnTaintNode Reason = ""                    // its node has no taint that counts
)

// Action to take for a VM.
type Action string

// Actions.
const (
	Nothing Action = ""
	Mark    Action = "Mark"
	Evict   Action = "Evict"
	Unmark  Action = "Unmark"
)

// Verdict is the decision about one VM.
type Verdict struct {
	VM     *VM
	Reason Reason
	Action Action
	// Detected and Replacing are the messages of its conditions NodeTaintDetected and
	// NodeTaintReplacing. Empty means no condition. With the reason NotKnown both conditions
	// stay as they are.
	Detected, Replacing string
	Cause               TaintID
	// Since is the start of the later of its conditions. Due is when the next step is due,
	// zero if never.
	Since, Due time.Time
}

// Plan is the decision about all VMs.
type Plan struct {
	State State
	VMs   []Verdict // in the order of replacement
	// TaintedNodes is the number of nodes with VMs that are or will be replaced. Allowed is
	// its limit.
	TaintedNodes, Allowed int
	InFlight              int
	// Again is when to call Next again without a change, 0 if never.
	Again time.Duration
}

// TooMany reports whether no VM is replaced because too many nodes are tainted.
func (p *Plan) TooMany() bool { return p.TaintedNodes > p.Allowed }

// Times after a request: until the cache shows its effect, and until a refused one is retried.
const (
	effectTimeout = 5 * time.Second
	evictionRetry = 30 * time.Second
)

// Next decides about all VMs. before is the State of the last call's Plan.
func Next(w World, before State) Plan {
	p := Plan{State: State{Clocks: w.Policy.updateClocks(before.Clocks, w.Nodes, w.Now), VMs: map[string]Progress{}}}
	p.Allowed = w.Policy.MaxTainted.Of(w.NodesWithVMs)
	tainted := map[string]bool{}
	for i := range w.VMs {
		v := w.evaluate(&w.VMs[i], before, &p)
		if !v.Due.IsZero() { // a taint requires, or will require, a replacement
			tainted[v.VM.Node] = true
		}
		p.VMs = append(p.VMs, v)
	}
	p.TaintedNodes = len(tainted)
	slices.SortFunc(p.VMs, func(a, b Verdict) int { return p.compare(&a, &b) })
	w.choose(&p)
	p.setAgain(w.Now)
	return p
}

// compare sorts VMs: started replacements first, then the oldest.
func (p *Plan) compare(a, b *Verdict) int {
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

// choose selects the due VMs to replace now, and sets messages.
func (w *World) choose(p *Plan) {
	for i := range p.VMs {
		if w.inFlight(p.State.VMs[p.VMs[i].VM.UID], p.VMs[i].VM) {
			p.InFlight++
		}
	}
	slots := w.Policy.MaxConcurrent - p.InFlight
	for i := range p.VMs {
		v := &p.VMs[i]
		progress := p.State.VMs[v.VM.UID]
		if v.Reason != Notice || w.Now.Before(v.Due) {
			if !w.inFlight(progress, v.VM) && v.Reason != NotKnown {
				progress.Started = time.Time{}
				p.setProgress(v.VM, progress)
			}
			continue
		}
		if w.decideDue(p, v, progress, slots) {
			slots--
		}
	}
	for i := range p.VMs {
		p.VMs[i].setMessage(p)
	}
}

// decideDue decides about a due VM, and reports whether it takes one of the free slots.
func (w *World) decideDue(p *Plan, v *Verdict, progress Progress, slots int) (takes bool) {
	has := w.inFlight(progress, v.VM)
	v.Reason, v.Action = w.decide(p, v, progress, slots)
	switch {
	case v.Action == Nothing && v.Reason != InProgress:
		progress.Started = time.Time{}
	case v.Action != Nothing && progress.Started.IsZero():
		progress.Started = w.Now
	}
	p.setProgress(v.VM, progress)
	return v.Action != Nothing && countsAsInFlight(v.VM) && !has
}

func (p *Plan) setProgress(v *VM, progress Progress) {
	if _, known := p.State.VMs[v.UID]; known {
		p.State.VMs[v.UID] = progress
	}
}

// decide returns reason and action for a due VM.
func (w *World) decide(p *Plan, v *Verdict, progress Progress, slots int) (Reason, Action) {
	vm := v.VM
	switch {
	case w.markWithoutEffect(progress, vm): // handled as unmarked; it has a slot
		slots++
	case w.inFlight(progress, vm), vm.Marked && vm.Ours:
		return InProgress, Nothing
	case vm.Marked, vm.Leaving:
		return LeavesAnyway, Nothing
	}
	if why := w.blocked(p, vm, progress, slots); why != NotOnTaintNode {
		return why, Nothing
	}
	if w.awaitsEffect(progress) {
		return InProgress, Nothing
	}
	return InProgress, actionFor(vm)
}

// blocked returns why a due VM is not replaced now, or "".
func (w *World) blocked(p *Plan, vm *VM, progress Progress, slots int) Reason {
	switch {
	case reportedOnly(vm):
		return NotMigratable
	case p.TooMany():
		return TooMany
	case !w.Nodes[vm.Node].Ready:
		return NodeNotReady
	case w.Now.Before(progress.Failed.Add(evictionRetry)) && !progress.Failed.After(w.Now):
		return Refused
	case w.Policy.MaxConcurrent == 0, slots <= 0 && countsAsInFlight(vm):
		return Waiting
	}
	return NotOnTaintNode
}

// setAgain sets Again to the next time at which a decision may change.
func (p *Plan) setAgain(now time.Time) {
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
			at(progress.Failed.Add(evictionRetry))
		}
		if !progress.Asked.IsZero() {
			at(progress.Asked.Add(effectTimeout))
		}
	}
}
