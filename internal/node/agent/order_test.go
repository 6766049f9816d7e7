package agent

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/fake"
)

func TestTheGuestIsAskedBeforeStatusIsWritten(t *testing.T) {
	inBubble(t, func(r *rig) {
		// given: a request that takes its time
		r.guarded(fake.Guest{Name: domain}, "60")
		answer := r.hv.Hang(fake.OpAsk, domain)
		phase := func() grace.Phase { return r.dir(domain).said().Phase }
		// when
		r.trigger(domain)
		// then
		r.after((100 * time.Millisecond) - time.Millisecond)
		if n := r.hv.Count(fake.OpAsk, domain); n != 1 || phase() != grace.Running {
			t.Errorf("asked %d times, status.json says %s while the request is on its way", n, phase())
		}
		r.after(2 * time.Millisecond)
		if phase() != grace.ShuttingDown {
			t.Errorf("status.json says %s: a request that hangs must not keep it back", phase())
		}
		answer()
	})
}

func TestStatusIsWrittenAsSoonAsTheGuestWasAsked(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		r.trigger(domain)
		if s := r.dir(domain).said(); s.Phase != grace.ShuttingDown {
			t.Errorf("status.json says %s", s.Phase)
		}
	})
}

func TestARequestCountsAlsoWhereTheGuestIsOffBeforeTheAnswer(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		answer := r.hv.Hang(fake.OpAsk, domain)
		r.trigger(domain)
		r.hv.End(domain, grace.EndGuest)
		r.after(time.Second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Graceful)
		answer()
		r.after(time.Second)
		if n := r.meter.of("asked acpi ok") + r.meter.of("asked acpi failed"); n != 1 {
			t.Errorf("%d requests are counted, want 1", n)
		}
	})
}
