package agent

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

func TestAVMIDeletedDuringADryRunIsShutDownByTheRealAgent(t *testing.T) {
	inCluster(t, "45", func(r *rig, _ *memoryCluster) {
		// Given: a dry run that sees the deletion, and nothing of the VM left but
		// its domain.
		r.stop()
		r.policy.DryRun = true
		r.run()
		r.after(time.Second)
		r.api(func(c *memoryCluster) { c.vmi, c.pods, c.fate = nil, nil, grace.FateDeleted })
		r.set(pod1, func(v *watch.View) { *v = watch.View{} })
		r.after(time.Hour)
		if n := r.hv.Count(fake.OpSignal, domain); n != 0 {
			t.Fatalf("a dry run signals %d times", n)
		}
		// When a real agent follows, then the guest gets its whole grace period.
		r.stop()
		r.policy.DryRun = false
		back := time.Since(r.start)
		r.run()
		r.after(time.Minute)
		if got := r.when(fake.OpSignal, domain); len(got) != 1 || got[0] < back+45*time.Second || got[0] > back+47*time.Second {
			t.Errorf("signalled at %v; want 45 s after %v", got, back)
		}
	})
}
