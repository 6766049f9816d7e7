package grace

import (
	"testing"
	"time"
)

type situation struct {
	name string
	r    Record
	o    observation
}

// situations are those that a keeper meets most, in the order of a shutdown.
func situations(tb testing.TB) []situation {
	tb.Helper()
	r, o := guarded(30 * time.Second)
	all := []situation{{"at rest", r, o}}
	o.Trigger, o.TriggerAt = true, t0
	all = append(all, situation{"trigger", r, o})
	r.begin(LauncherSignal, t0, time.Unix(0, 0), false)
	o.Look = Call{Tries: 1, Last: t0}
	all = append(all, situation{"begun", r, o})
	o.AskACPI = Call{Tries: 1, Last: t0}
	all = append(all, situation{"asked", r, o})
	r.Shutdown.Deadline = t0
	all = append(all, situation{"deadline", r, o})
	o.Term = Call{Tries: 1, Last: t0}
	return append(all, situation{"destroying", r, o})
}

func TestNothingOnTheWayThroughAShutdownAllocates(t *testing.T) {
	for _, s := range situations(t) {
		var d Decision
		if n := testing.AllocsPerRun(100, func() { d = decide(&s.r, &s.o, &policy, at(1)) }); n != 0 {
			t.Errorf("%s: %v allocations for %+v", s.name, n, d)
		}
	}
}
