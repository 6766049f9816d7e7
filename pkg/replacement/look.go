package replacement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// seen is a VM with what its node's taints mean for it.
type seen struct {
	Verdict

	fires bool // one of the taints will have it replaced, or has
}

// running is a taint that counts for a VM, and when the VM is to be replaced
// for it: zero if never.
type running struct {
	id           TaintID
	since, fires time.Time
}

// look tells what the taints of its node mean for a VM, and goes on from what
// was remembered of it.
func (w *World) look(vm *VM, before State, p *Plan) seen {
	v := seen{Verdict: Verdict{VM: vm, Reason: NotOnTaintNode}}
	had, known := before.VMs[vm.UID]
	if known && had.Node != vm.Node {
		had, known = Progress{}, false
	}
	taints := w.taintsOf(vm, p.State.Clocks)
	if len(taints) > 0 && !vm.Launcher {
		v.Reason, v.Keep = NotKnown, true
		if known {
			p.State.VMs[vm.UID] = had
			v.Since = had.Since
		}
		return v
	}
	if len(taints) == 0 {
		if vm.unmarked() {
			v.Action = Unmark
		}
		return v
	}
	cause, replacing := w.cause(taints, had)
	progress := w.goOn(vm, had, cause, replacing)
	if !replacing && vm.unmarked() {
		v.Action = Unmark
	}
	p.State.VMs[vm.UID] = progress
	v.Reason, v.Since, v.Cause = Tainted, progress.Since, taints[0].id
	v.firstOf(taints)
	if replacing {
		v.Reason, v.Since, v.Cause = Notice, progress.Replacing, cause.id
		v.Due = progress.Replacing.Add(w.Policy.Notice)
	}
	v.Detected = detected(taints)
	return v
}

// goOn is what is remembered of a VM from now on. cause is the taint for which it is
// to be replaced, if it is.
func (w *World) goOn(vm *VM, had Progress, cause running, replacing bool) Progress {
	p := had
	p.Node = vm.Node
	if p.Since.IsZero() {
		p.Since = w.Now
	}
	switch {
	case !replacing:
		p.Cause, p.Replacing = TaintID{}, time.Time{}
	case cause.id != had.Cause || had.Replacing.IsZero() || had.Replacing.Before(cause.since):
		p.Cause, p.Replacing = cause.id, w.Now
		// What the VM itself says outlives what is remembered.
		if had.Since.IsZero() && !vm.Replacing.IsZero() && vm.Replacing.Before(w.Now) && vm.Replacing.After(cause.since) {
			p.Replacing = vm.Replacing
		}
	}
	return p
}

// firstOf notes the taint that will have the VM replaced first.
func (v *seen) firstOf(taints []running) {
	for _, t := range taints {
		if t.fires.IsZero() {
			continue
		}
		v.fires = true
		if v.Due.IsZero() || t.fires.Before(v.Due) {
			v.Due, v.Cause = t.fires, t.id
		}
	}
}

// unmarked: a mark that a taint made goes with the taint, but for a VM that ends
// otherwise, or that others move.
func (v *VM) unmarked() bool {
	return v.Marked && v.Ours && !v.Leaving && v.Strategy != kubevirt.StrategyExternal
}

// taintsOf are the taints of a VM's node that count for it, the oldest first.
func (w *World) taintsOf(vm *VM, clocks Clocks) []running {
	var all []running
	for _, t := range w.Nodes[vm.Node].Taints {
		id := TaintID{vm.Node, t.Key, t.Effect}
		since, counts := clocks[id]
		if !counts || vm.Launcher && vm.Tolerates(id) {
			continue
		}
		r := running{id: id, since: since}
		if o, _ := w.Policy.option(t.Key); o.After >= 0 {
			r.fires = since.Add(o.After)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b running) int {
		if c := a.since.Compare(b.since); c != 0 {
			return c
		}
		return strings.Compare(a.id.String(), b.id.String())
	})
	return all
}

// cause is the taint for which a VM is to be replaced: the one that it is so
// for, else the first.
func (w *World) cause(taints []running, had Progress) (first running, replacing bool) {
	for _, t := range taints {
		if t.fires.IsZero() || w.Now.Before(t.fires) {
			continue
		}
		if t.id == had.Cause {
			return t, true
		}
		if !replacing || t.fires.Before(first.fires) {
			first, replacing = t, true
		}
	}
	return first, replacing
}

// named bounds how many taints a message names.
const named = 4

func detected(taints []running) string {
	var words []string
	for _, t := range taints[:min(len(taints), named)] {
		word := fmt.Sprintf("%s since %s, ", t.id, stamp(t.since))
		if t.fires.IsZero() {
			word += "for which no VM is replaced"
		} else {
			word += "to be replaced from " + stamp(t.fires) + " on"
		}
		words = append(words, word)
	}
	if more := len(taints) - named; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("node %s has the taint %s", taints[0].id.Node, strings.Join(words, "; "))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// say writes the message of a VM that is to be replaced.
func (v *Verdict) say(p *Plan) {
	if v.Keep || v.Detected == "" || v.Reason == Tainted {
		return
	}
	text := fmt.Sprintf("the VM is to leave node %s for its taint %s", v.VM.Node, v.Cause)
	switch due := stamp(v.Due); v.Reason {
	case Notice:
		text += ": it is replaced from " + due + " on"
		if onlySaid(v.VM) {
			text += ", if it is live-migratable then"
		}
	case Waiting:
		text += ": due since " + due + ", it waits until less VMs are being replaced"
	case TooMany:
		text += ": due since " + due + ", no VM is replaced while more nodes are tainted than maxTaintedNodes allows"
	case NodeNotReady:
		text += ": due since " + due + ", the node is not Ready"
	case NotMigratable:
		text += ": due since " + due + ", it is not live-migratable, and its evictionStrategy LiveMigrate lets nobody stop it"
	case Refused:
		text += ": due since " + due + ", its eviction was refused: " + p.State.VMs[v.VM.UID].Why
	case InProgress:
		text += ": it is being replaced"
		if v.VM.Strategy == kubevirt.StrategyExternal {
			text += " by who watches status.evacuationNodeName"
		}
	case LeavesAnyway:
		text += ": somebody else has it moved or stopped already"
	default: // the others have no such message
	}
	v.Replacing = text
}
