package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// preempted deletes a pod for preemption; its shutdown may be held for two minutes.
func preempted(p *grace.Pod, at grace.Mono) {
	p.Holdable, p.HoldReason, p.Reserve, p.Allowance = true, grace.PreemptionByScheduler, 90*time.Second, 2*time.Minute
	deleted(p, at, 5*time.Minute)
}

func TestAHeldShutdownIsToldOfAndAsksNobody(t *testing.T) {
	inCluster(t, "60", func(r *rig, c *memoryCluster) {
		at := r.Now()
		r.api(func(c *memoryCluster) { preempted(&c.pods[0], at); c.vmi.Marked = true })
		r.sigterm(pod1)
		r.after(time.Second)
		rec, _ := r.record()
		if h := rec.Hold; rec.ShuttingDown() || h.Reason != grace.PreemptionByScheduler || !h.Leaving || h.Until != at.Add(2*time.Minute) {
			t.Errorf("%+v", rec)
		}
		if s := r.dir(pod1).said(); s.Phase != grace.Held || s.Cause != grace.PreemptionByScheduler || !s.Deadline.Equal(rec.Hold.UntilAt) || !s.StartedAt.Equal(rec.Hold.StartedAt) {
			t.Errorf("%+v", s)
		}
		if n := r.agent.Phases()[grace.Held]; n != 1 || !r.agent.Guarding() {
			t.Errorf("%d VMs are held, guarding %v", n, r.agent.Guarding())
		}
		if held := r.agent.HeldFor(domain); held != time.Second {
			t.Errorf("held for %v, want 1s", held)
		}
		// It is the same after a restart, and the guest has its grace period then.
		r.restart()
		r.after(time.Minute)
		if again, _ := r.record(); again.Hold != rec.Hold {
			t.Errorf("%+v, then %+v", rec.Hold, again.Hold)
		}
		r.after(time.Minute)
		rec, _ = r.record()
		if s := rec.Shutdown; s.Cause != grace.LauncherSignal || s.Start != at.Add(2*time.Minute) || s.Deadline != s.Start.Add(time.Minute) {
			t.Errorf("%+v", s)
		}
		if held := r.agent.HeldFor(domain); held != 0 {
			t.Errorf("held for %v in the grace period", held)
		}
		r.after(2 * time.Minute)
		r.stoppedAs(pod1, grace.LauncherSignal, grace.Forced)
		if got := c.told(); !slices.Equal(got, []string{"ShutdownHeld", "ShutdownStarted", "ShutdownForced"}) {
			t.Errorf("Events %v", got)
		}
	})
}
