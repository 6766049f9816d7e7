package fake

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/drivertest"
)

func TestContract(t *testing.T) {
	drivertest.Run(t, drivertest.Suite{New: harness, Around: synctest.Test, Timeout: time.Minute})
}

func harness(*testing.T) *drivertest.Harness {
	h := New()
	var serial atomic.Int32
	return &drivertest.Harness{
		Driver: h,
		Run:    h.Run,
		Start: func(_ *testing.T, kind drivertest.Guest) string {
			g := Guest{Name: fmt.Sprintf("ns_vm-%d", serial.Add(1)), Exits: 50 * time.Millisecond, Lingers: 1500 * time.Millisecond}
			switch kind {
			case drivertest.Polite:
				g.Presses, g.ShutsDown = 1, 300*time.Millisecond
			case drivertest.Refusing:
				g.Agent, g.Refuses = true, drivertest.Refusal
			case drivertest.Frozen: // this hypervisor thaws
				g.Agent, g.Presses = true, 1
			default:
			}
			h.Start(g)
			if kind == drivertest.Panicked {
				h.SetPower(g.Name, grace.PowerCrashed)
			}
			return g.Name
		},
		Pause:   func(_ *testing.T, name string) { h.SetPower(name, grace.PowerPaused) },
		Restart: func(_ *testing.T, name string) { h.Restart(name) },
		Freeze:  func(t *testing.T, name string) { t.Helper(); t.Cleanup(h.Hang(OpAsk, name)) },
		Cut:     func(*testing.T) { h.Down(true) },
		Mend:    func(*testing.T) { h.Down(false) },
	}
}
