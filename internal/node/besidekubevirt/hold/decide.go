package hold

import (
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// action is what to do about a launcher.
type action int

const (
	wait    action = iota // for news
	askPod                // the watch may be later than kubelet's signal: ask for the pod
	askMove               // nobody has marked the VM: ask for a migration of it
	holdIt
	letGo
)

type decision struct {
	do action
	// again is when to decide again without news.
	again   grace.Mono
	hold    grace.Hold
	outcome Outcome // of the hold that letGo ends
}

// facts are what is known of a launcher.
type facts struct {
	grace.HoldFacts

	view watch.HoldView
	hold grace.Hold
	// gone means that the VMI is deleted, left that the VM runs elsewhere, down that the node
	// shuts down. Each makes an end.
	gone, left, down bool
	// asked means that the API server was just asked for a migration.
	asked bool
}

func (f *facts) decide(now grace.Mono) decision {
	goesOn := f.view.Answered && !f.view.Held
	switch {
	case f.hold.UnderWay() && goesOn:
		return decision{do: letGo, outcome: LauncherGone} // it no longer waits
	case !f.hold.UnderWay() && (goesOn || !f.view.Trigger):
		return decision{again: grace.Never}
	case f.left:
		return decision{do: letGo, outcome: Moved}
	}
	f.Over = f.gone || f.down
	h, held := f.Next(f.hold, now)
	switch {
	case held:
		return f.holds(&h)
	case h.Reason != "" && now < h.Until && !f.asked && (!h.Leaving || f.Unmarked):
		return decision{do: askMove}
	default:
		return decision{do: letGo, outcome: f.outcome(&h, now)}
	}
}

func (f *facts) holds(h *grace.Hold) decision {
	switch {
	case h.Reason == "":
		return decision{do: askPod, again: h.Until}
	case *h == f.hold && f.waits():
		return decision{again: f.Ends(h)}
	default:
		return decision{do: holdIt, hold: *h, again: f.Ends(h)}
	}
}

// waits reports whether the launcher waits until it is let go, or is gone with its directory.
func (f *facts) waits() bool { return !f.view.Present || f.view.Held && f.view.Answered }

// outcome returns why h is over.
func (f *facts) outcome(h *grace.Hold, now grace.Mono) Outcome {
	switch {
	case f.gone:
		return VMIDeleted
	case f.down:
		return NodeShutdown
	case now >= h.Until:
		return TimeIsOver
	case !h.Leaving:
		return NotMarked
	default:
		return NotMoved
	}
}
