package agent

import (
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// A keeper is in a hurry when it wakes shortly before its VM's deadline, until
// the signal is out; hurryAfter is for a keeper that does not get to it.
const (
	hurryBefore = 200 * time.Millisecond
	hurryAfter  = 50 * time.Millisecond
)

// hurry begins before the deadline: then it is not in the way of the signal.
func (k *keeper) hurry(now grace.Mono) {
	left := k.due().Sub(now)
	if k.cfg.Hurry == nil || k.cfg.Policy.DryRun || k.calm != nil || left <= 0 || left > hurryBefore {
		return
	}
	k.calm = k.cfg.Hurry(k.due().Add(hurryAfter))
}

func (k *keeper) calmDown() {
	if k.calm != nil {
		k.calm()
		k.calm = nil
	}
}

func (k *keeper) sleep(until, now grace.Mono) {
	k.hurry(now)
	if until == grace.Never {
		k.timer.Stop()
		return
	}
	wait := max(until.Sub(now), 0)
	if k.rec.ShuttingDown() { // nobody at rest is woken for milliseconds
		wait = firstSleep(wait)
	}
	k.timer.Reset(wait)
}

// lastSleep is short enough to end on time, and long enough for the hurry to
// begin before it does.
const lastSleep = 40 * time.Millisecond

// firstSleep is how long to sleep at first to be on time after wait: an
// epoll_wait, where Go's runtime sleeps, ends up to a thousandth of its time
// late, 100 ms at most (Linux, select_estimate_accuracy).
func firstSleep(wait time.Duration) time.Duration {
	if wait < 2*lastSleep {
		return wait
	}
	return wait - min(max(wait/500, lastSleep), hurryBefore)
}
