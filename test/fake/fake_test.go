package fake

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
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

func TestTheJournalKeepsTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, begin := New(), time.Now()
		i := h.Start(Guest{Name: "ns_vm", Presses: 2, ShutsDown: time.Second})
		p, err := h.OpenProcess(i.PID, i.Start)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			time.Sleep(5 * time.Second) //nolint:forbidigo // fake time
			if err := h.Ask(t.Context(), "ns_vm", i, grace.ModeACPI); err != nil {
				t.Fatal(err)
			}
		}
		<-p.Done()
		if got := time.Since(begin); got != 11*time.Second {
			t.Errorf("off after %v, want 11s", got)
		}
		calls := h.Calls()
		if len(calls) != 2 || calls[1].At.Sub(begin) != 10*time.Second || calls[1].Op != OpAsk || calls[1].Mode != grace.ModeACPI {
			t.Errorf("journal: %+v", calls)
		}
		if err := p.Signal(unix.SIGTERM); !errors.Is(err, process.ErrGone) {
			t.Errorf("signal after the end: %v", err)
		}
	})
}

func TestAFrozenProcessHeedsOnlySIGKILL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		i := h.Start(Guest{Name: "ns_vm", Frozen: true})
		p, err := h.OpenProcess(i.PID, i.Start)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Signal(unix.SIGTERM); err != nil || p.Gone() {
			t.Fatalf("SIGTERM: %v, gone %t", err, p.Gone())
		}
		if err := p.Signal(unix.SIGKILL); err != nil || !p.Gone() {
			t.Fatalf("SIGKILL: %v, gone %t", err, p.Gone())
		}
		if _, err := h.OpenProcess(i.PID, i.Start); !errors.Is(err, process.ErrGone) {
			t.Errorf("open after the end: %v", err)
		}
	})
}

func TestAnUnkillableProcessOutlivesDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		i := h.Start(Guest{Name: "ns_vm", Unkillable: true})
		begin := time.Now()
		if err := h.Destroy(t.Context(), "ns_vm", i); err == nil {
			t.Error("destroyed")
		}
		if got := time.Since(begin); got != 40*time.Second {
			t.Errorf("libvirt gave up after %v", got)
		}
		if d, err := h.Get(t.Context(), "ns_vm"); err != nil || d.Instance != i {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

func TestAnUnidentifiedInstanceHasNoPid(t *testing.T) {
	h := New()
	i := h.Start(Guest{Name: "ns_vm", Unidentified: true})
	if i.PID != 0 || i.UUID == "" {
		t.Errorf("instance %+v", i)
	}
	h.Identify("ns_vm")
	if d, err := h.Get(t.Context(), "ns_vm"); err != nil || d.Instance.PID == 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := h.Destroy(t.Context(), "ns_vm", i); !errors.Is(err, hypervisor.ErrOtherInstance) {
		t.Errorf("destroy by the UUID alone: %v", err)
	}
}
