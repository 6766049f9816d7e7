package agent

import (
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/fake"
)

// hurries counts who is in a hurry, and keeps until when the last one would be.
type hurries struct {
	mu          sync.Mutex
	begun, many int
	until       grace.Mono
}

func (h *hurries) begin(until grace.Mono) (calm func()) {
	h.add(1, until)
	return sync.OnceFunc(func() { h.add(-1, until) })
}

func (h *hurries) add(n int, until grace.Mono) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun, h.many, h.until = h.begun+max(n, 0), h.many+n, until
}

func (h *hurries) now() (begun, many int, until grace.Mono) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun, h.many, h.until
}

func TestTheAgentIsInAHurryBeforeADeadlineUntilTheSignalIsOut(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Exits: 5 * time.Second}, "60")
		r.trigger(domain)
		deadline := r.Now().Add(60 * time.Second)
		// Given: nobody is, for as long as there is time.
		r.after(60*time.Second - hurryBefore - time.Millisecond)
		if begun, _, _ := r.hurry.now(); begun != 0 {
			t.Errorf("in a hurry %d times before there is one", begun)
		}
		// When the deadline is near.
		r.after(hurryBefore - lastSleep/2)
		if begun, many, until := r.hurry.now(); begun != 1 || many != 1 || until < deadline || until > deadline.Add(hurryAfter+time.Millisecond) {
			t.Errorf("begun %d times, %d in a hurry, until %v after the deadline", begun, many, until.Sub(deadline))
		}
		// Then it is over with the signal, although QEMU takes its time.
		r.after(lastSleep)
		if _, many, _ := r.hurry.now(); many != 0 || r.meter.of("destroyed signal") != 1 {
			t.Errorf("%d in a hurry after %d signals", many, r.meter.of("destroyed signal"))
		}
	})
}

func TestNobodyStaysInAHurry(t *testing.T) {
	for name, ends := range map[string]func(*rig){
		"the guest is off in time": func(r *rig) { r.hv.End(domain, grace.EndGuest) },
		"the agent ends":           func(r *rig) { r.stop(); r.stop = func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.guarded(fake.Guest{Name: domain}, "60")
				r.trigger(domain)
				r.after(60*time.Second - lastSleep/2)
				ends(r)
				r.after(lastSleep / 4)
				if begun, many, _ := r.hurry.now(); begun != 1 || many != 0 {
					t.Errorf("begun %d times, still %d", begun, many)
				}
			})
		})
	}
}
