package taints

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// activeTaint is a taint that counts for a VM. The duration of its option is over at
// expires, zero if never. The VM gets the condition NodeTaintReplacing then.
type activeTaint struct {
	id             TaintID
	since, expires time.Time
}

// evaluate derives the verdict on a VM from the taints of its node, before the limits are
// applied. It puts the VM's new progress into the plan.
func (w *World) evaluate(vm *VM, before State, p *Plan) Verdict {
	v := Verdict{VM: vm, Reason: NotOnTaintNode}
	had, known := before.VMs[vm.UID]
	if known && had.Node != vm.Node {
		had, known = Progress{}, false
	}
	taints := w.taintsOf(vm, p.State.Clocks)
	if len(taints) > 0 && !vm.Launcher {
		v.Reason = NotKnown
		if known {
			p.State.VMs[vm.UID] = had
			v.Since = had.Since
		}
		return v
	}
	if len(taints) == 0 {
		if vm.losesMark() {
			v.Action = Unmark
		}
		return v
	}
	cause, replacing := w.cause(taints, had)
	progress := w.nextProgress(vm, had, cause, replacing)
	if !replacing && vm.losesMark() {
		v.Action = Unmark
	}
	p.State.VMs[vm.UID] = progress
	v.Reason, v.Since, v.Cause = Tainted, progress.Since, taints[0].id
	v.setFirstDue(taints)
	if replacing {
		v.Reason, v.Since, v.Cause = Notice, progress.Replacing, cause.id
		v.Due = progress.Replacing.Add(w.Policy.Notice)
	}
	v.Detected = detectedMessage(taints)
	return v
}

// nextProgress returns the new progress of a VM on a tainted node. cause is the taint for
// which it is replaced, if replacing.
func (w *World) nextProgress(vm *VM, had Progress, cause activeTaint, replacing bool) Progress {
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
		// After a restart without progress, the VM's condition has the time.
		if had.Since.IsZero() && !vm.Replacing.IsZero() && vm.Replacing.Before(w.Now) && vm.Replacing.After(cause.since) {
			p.Replacing = vm.Replacing
		}
	}
	return p
}

// setFirstDue sets Due and Cause to those of the taint that expires first.
func (v *Verdict) setFirstDue(taints []activeTaint) {
	for _, t := range taints {
		if !t.expires.IsZero() && (v.Due.IsZero() || t.expires.Before(v.Due)) {
			v.Due, v.Cause = t.expires, t.id
		}
	}
}

// losesMark reports whether the mark of the VM is removed when no taint requires it: a
// mark because of a taint, unless the launcher terminates or the strategy is External.
func (v *VM) losesMark() bool {
	return v.Marked && v.Ours && !v.Leaving && v.Strategy != kubevirt.StrategyExternal
}

// taintsOf returns the taints of a VM's node that count for it, the oldest first.
func (w *World) taintsOf(vm *VM, clocks Clocks) []activeTaint {
	var all []activeTaint
	for _, t := range w.Nodes[vm.Node].Taints {
		id := TaintID{vm.Node, t.Key, t.Effect}
		since, counts := clocks[id]
		if !counts || vm.Launcher && vm.Tolerates(id) {
			continue
		}
		r := activeTaint{id: id, since: since}
		if o, _ := w.Policy.option(t.Key); o.After >= 0 {
			r.expires = since.Add(o.After)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b activeTaint) int {
		if c := a.since.Compare(b.since); c != 0 {
			return c
		}
		return strings.Compare(a.id.String(), b.id.String())
	})
	return all
}

// cause returns the expired taint for which a VM is replaced: the former cause, else the
// one that expired first.
func (w *World) cause(taints []activeTaint, had Progress) (first activeTaint, replacing bool) {
	for _, t := range taints {
		if t.expires.IsZero() || w.Now.Before(t.expires) {
			continue
		}
		if t.id == had.Cause {
			return t, true
		}
		if !replacing || t.expires.Before(first.expires) {
			first, replacing = t, true
		}
	}
	return first, replacing
}

// maxNamedTaints is the number of taints that a message names.
const maxNamedTaints = 4

// detectedMessage returns the message of the condition NodeTaintDetected.
func detectedMessage(taints []activeTaint) string {
	var texts []string
	for _, t := range taints[:min(len(taints), maxNamedTaints)] {
		text := fmt.Sprintf("%s since %s, ", t.id, formatTime(t.since))
		if t.expires.IsZero() {
			text += "for which no VM is replaced"
		} else {
			text += "to be replaced from " + formatTime(t.expires) + " on"
		}
		texts = append(texts, text)
	}
	if more := len(taints) - maxNamedTaints; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("node %s has the taint %s", taints[0].id.Node, strings.Join(texts, "; "))
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// setMessage sets the message of the condition NodeTaintReplacing.
func (v *Verdict) setMessage(p *Plan) {
	if v.Detected == "" || v.Reason == Tainted {
		return
	}
	text := fmt.Sprintf("the VM is to leave node %s for its taint %s", v.VM.Node, v.Cause)
	switch due := formatTime(v.Due); v.Reason {
	case Notice:
		text += ": it is replaced from " + due + " on"
		if reportedOnly(v.VM) {
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
	default: // the other reasons are without this condition
	}
	v.Replacing = text
}
