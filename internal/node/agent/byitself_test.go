package agent

import (
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/fake"
)

// Given a VM that nobody shuts down. When it ends, wherever the agent is by then, then
// status.json says that it has stopped, and how. Otherwise its launcher would wait for ever.
func TestAnEndWithoutAShutdownIsTold(t *testing.T) {
	for name, when := range map[string]func(*rig, grace.End){
		"while the agent runs": func(r *rig, end grace.End) { r.hv.End(domain, end) },
		"while no agent runs":  func(r *rig, end grace.End) { r.stop(); r.hv.End(domain, end); r.run() },
		"and no event is sent": func(r *rig, end grace.End) { r.deaf.Store(true); r.hv.End(domain, end) },
	} {
		for end, want := range map[grace.End]grace.Status{
			grace.EndGuest:     {Outcome: grace.AlreadyStopped},
			grace.EndDestroyed: {Outcome: grace.Lost, End: grace.EndDestroyed, Message: "the VM was destroyed"},
			grace.EndCrashed:   {Outcome: grace.Lost, End: grace.EndCrashed, Message: "the VM was crashed"},
			grace.EndSaved:     {Outcome: grace.Lost, End: grace.EndSaved, Message: "the VM was saved: its launcher waits for its return"},
		} {
			t.Run(name+", "+string(end), func(t *testing.T) {
				inBubble(t, func(r *rig) {
					r.guarded(fake.Guest{Name: domain}, "30")
					when(r, end)
					r.after(minute)
					r.stoppedAs(domain, "", want.Outcome)
					if s := r.dir(domain).said(); s.End != want.End || s.Message != want.Message || s.UID != "uid-"+domain {
						t.Errorf("status.json: %+v", s)
					}
				})
			})
		}
	}
}
