package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/fake"
)

// Given a guest that does not shut down, for each reason that can be known. When it is destroyed at
// its deadline, then status.json, the pod's condition and the Event have said why.
func TestItIsSaidWhyAGuestDoesNotShutDown(t *testing.T) {
	for want, given := range map[string]func(*rig){
		"silent: asked, and not off yet":                           func(*rig) {},
		"refused by the guest: Access denied":                      func(r *rig) { r.hv.Connect(domain, "Access\n denied") },
		"not asked: paused (I/O error)":                            func(r *rig) { r.hv.PausedBy(domain, "I/O error") },
		"not asked: no request could be made":                      func(r *rig) { r.hv.Down(true) },
		"refused by the guest: " + strings.Repeat("no ", 40) + "…": func(r *rig) { r.hv.Connect(domain, strings.Repeat("no ", 1000)) },
	} {
		t.Run(want[:20], func(t *testing.T) {
			inCluster(t, "40", func(r *rig, c *memoryCluster) {
				given(r)
				r.sigterm(pod1)
				r.after(39 * second)
				if got := r.dir(pod1).said().Message; got != want {
					t.Errorf("status.json says %q", got)
				}
				if got := r.agent.Summary(domain).Unheard; got != want {
					t.Errorf("the condition says %q", got)
				}
				r.after(2 * second)
				r.hv.Down(false)
				r.after(10 * second)
				r.stoppedAs(pod1, grace.LauncherSignal, grace.Forced)
				if got := r.dir(pod1).said().Message; got != want {
					t.Errorf("of the end status.json says %q", got)
				}
				if said := c.events[len(c.events)-1].Message; !strings.HasSuffix(said, ", "+want) {
					t.Errorf("the Event says %q", said)
				}
			})
		})
	}
}

// Given a guest that has panicked and is kept. When its VM is to stop, then it is ended at once, and
// told with its reason.
func TestACrashedGuestIsEndedAtOnce(t *testing.T) {
	inCluster(t, "600", func(r *rig, c *memoryCluster) {
		r.hv.SetPower(domain, grace.PowerCrashed)
		r.after(time.Hour)
		r.untouched()
		r.sigterm(pod1)
		r.after(second)
		r.stoppedAs(pod1, grace.LauncherSignal, grace.Lost)
		if n := r.hv.Count(fake.OpAsk, domain); n != 0 {
			t.Errorf("asked %d times", n)
		}
		if end := r.dir(pod1).said().End; end != grace.EndCrashed {
			t.Errorf("its launcher hears %q", end)
		}
		if said := c.events[len(c.events)-1].Message; !strings.Contains(said, "panicked") {
			t.Errorf("the Event says %q", said)
		}
	})
}
