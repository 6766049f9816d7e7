package agent

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

func TestATriggerThatComesDuringALookGetsItsWholeGracePeriod(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "10")
		r.dir(domain).takes.Store(int64(second))
		r.agent.LauncherChanged(domain)
		r.after(second / 2)
		came := time.Since(r.start)
		r.set(domain, func(v *watch.View) { v.Trigger, v.TriggerID = true, grace.TriggerID{Inode: 5} })
		r.after(minute)
		if got := r.when(fake.OpSignal, domain); len(got) != 1 || got[0] < came+10*second {
			t.Errorf("the trigger came at %v, signalled at %v: less than 10 s later", came, got)
		}
	})
}

func TestTheShownDeadlineIsNeverLaterThanTheOneThatCounts(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "10")
		r.pause.Store(int64(100 * time.Millisecond))
		r.trigger(domain)
		r.after(minute)
		s := r.dir(domain).said()
		signalled := r.start.Add(r.when(fake.OpSignal, domain)[0])
		if s.Outcome != grace.Forced || s.Deadline.After(signalled) {
			t.Errorf("%s: signalled %v before the deadline that is shown", s.Outcome, s.Deadline.Sub(signalled))
		}
	})
}
