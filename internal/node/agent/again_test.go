package agent

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

func TestALauncherStartedAgainInPlaceIsADeath(t *testing.T) {
	for name, away := range map[string]bool{"while the agent is there": false, "while it is not": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				_, shim := r.guarded(fake.Guest{Name: domain}, "3600")
				if away {
					r.stop()
				}
				next := r.hv.StartProcess("next shim")
				r.set(domain, func(v *watch.View) { v.Holder.PID, v.Holder.File = next.PID(), 78 })
				_ = shim.Signal(unix.SIGKILL)
				if away {
					r.run()
				}
				r.after(100 * time.Millisecond)
				r.stoppedAs(domain, grace.LauncherDied, grace.Forced)
				// The next VM of that launcher lives.
				i := r.hv.Start(fake.Guest{Name: domain})
				r.after(minute)
				if rec, ok := r.cache.get(domain); !ok || rec.Instance != i || rec.Launcher.PID != next.PID() || rec.ShuttingDown() {
					t.Errorf("the record of the next VM: %+v", rec)
				}
			})
		})
	}
}

func TestALauncherThatLivesIsNotDeadForItsSuccessor(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "3600")
		next := r.hv.StartProcess("next shim")
		r.change(domain, func(v *watch.View) { v.Holder.PID, v.Holder.File = next.PID(), 78 })
		r.after(second)
		r.restart()
		r.after(second)
		if rec, ok := r.cache.get(domain); !ok || rec.ShuttingDown() || rec.Launcher.PID != next.PID() {
			t.Errorf("the record: %+v", rec)
		}
	})
}
