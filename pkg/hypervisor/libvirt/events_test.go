//go:build !unit

package libvirt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// heard is what the sink of Run got.
type heard struct {
	mu  sync.Mutex
	all []hypervisor.Event
}

func (h *heard) add(e hypervisor.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, e)
}

func (h *heard) count(e hypervisor.Event) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, other := range h.all {
		if other == e {
			n++
		}
	}
	return n
}

// ends returns the different ends that were heard of a domain, in order.
func (h *heard) ends(name string) []grace.End {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ends []grace.End
	for _, e := range h.all {
		if e.Name == name && e.End != grace.EndUnknown {
			ends = append(ends, e.End)
		}
	}
	return slices.Compact(ends)
}

// listen runs the driver's event connection until the test ends.
func listen(t *testing.T, d *Driver) *heard {
	t.Helper()
	h := &heard{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, h.add) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if d.Up() {
			t.Error("up without a connection")
		}
	})
	return h
}

func instance(t *testing.T, d *Driver, name string) grace.Instance {
	t.Helper()
	var i grace.Instance
	node.Eventually(t, testTimeout, func() bool {
		dom, err := d.Get(bounded(t), name)
		i = dom.Instance
		return err == nil && i.PID != 0
	}, "%s is identified", name)
	return i
}

func TestTheEndIsNamedAsItWas(t *testing.T) {
	d, _ := open(t)
	events := listen(t, d)
	node.Eventually(t, testTimeout, d.Up, "connected")
	for _, c := range []struct {
		name string
		end  func(*node.Guest)
		// event and log do not always agree: see the traps of libvirt.
		event, log grace.End
	}{
		{"destroy", func(g *node.Guest) { g.Virsh(t, "destroy") }, grace.EndDestroyed, grace.EndDestroyed},
		{"gracefulDestroy", func(g *node.Guest) { g.Virsh(t, "destroy", "--graceful") }, grace.EndDestroyed, grace.EndDestroyed},
		{"SIGTERM", func(g *node.Guest) { g.Signal(t, syscall.SIGTERM) }, grace.EndDestroyed, grace.EndDestroyed},
		{"SIGTERMRestart", func(g *node.Guest) { g.Signal(t, syscall.SIGTERM) }, grace.EndFailed, grace.EndDestroyed},
		{"SIGKILL", func(g *node.Guest) { g.Signal(t, syscall.SIGKILL) }, grace.EndFailed, grace.EndCrashed},
		{"save", func(g *node.Guest) { g.Virsh(t, "save", t.TempDir()+"/state") }, grace.EndSaved, grace.EndSaved},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := node.Spec{Firmware: true}
			if c.name == "SIGTERMRestart" {
				spec.OnPoweroff = "restart"
			}
			g := shared.Boot(t, spec)
			i := instance(t, d, g.Domain)
			c.end(g)
			g.WaitGone(t, testTimeout)
			var end grace.End
			node.Eventually(t, testTimeout, func() bool {
				var err error
				end, err = d.Ended(bounded(t), g.Domain, i)
				if err != nil {
					t.Fatal(err)
				}
				return end != grace.EndUnknown
			}, "the end is known")
			if end != c.log {
				t.Errorf("the log says %q, want %q:\n%s", end, c.log, g.QEMULog())
			}
			node.Eventually(t, testTimeout, func() bool { _, err := d.Get(bounded(t), g.Domain); return errors.Is(err, hypervisor.ErrNotFound) }, "libvirt forgets it")
			node.Eventually(t, testTimeout, func() bool { return slices.Contains(events.ends(g.Domain), c.event) }, "an event says so")
			// libvirt 11 first tells of a guest that it saves that the host shuts it down.
			first, ends := grace.EndDestroyed, events.ends(g.Domain)
			if !slices.Equal(ends, []grace.End{c.event}) && (!c.event.GoesOn() || !slices.Equal(ends, []grace.End{first, c.event})) {
				t.Errorf("events say %q, want %q", ends, c.event)
			}
		})
	}
}

// A device decides whether the VM can be migrated, and only events tell of it.
func TestADeviceThatComesOrGoesIsHeardOf(t *testing.T) {
	d, _ := open(t)
	events := listen(t, d)
	node.Eventually(t, testTimeout, d.Up, "connected")
	g := shared.Boot(t, node.Spec{Firmware: true, GuestAgent: true})
	dir := t.TempDir()
	device := filepath.Join(dir, "device.xml")
	kit.Must(t, os.WriteFile(device, []byte("<channel type='unix'><source mode='bind' path='"+dir+"/s'/><target type='virtio' name='org.example.0'/></channel>"), 0o600))
	told := hypervisor.Event{Name: g.Domain, UUID: g.UUID}
	for _, command := range []string{"attach-device", "detach-device"} {
		before := events.count(told)
		g.Virsh(t, command, device, "--live")
		node.Eventually(t, testTimeout, func() bool { return events.count(told) > before }, "an event tells of %s", command)
	}
}

func TestRunEndsWithItsContextAlsoWhenLibvirtHangs(t *testing.T) {
	d, p := open(t)
	p.silence()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, func(hypervisor.Event) { t.Error("an event out of nowhere") }) }()
	heldWithin(t, p, 1)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if d.Up() {
		t.Error("up without a connection")
	}
	p.cut(t) // without this the connect hangs for as long as libvirtd does
}

func TestASilentLibvirtdIsGivenUp(t *testing.T) {
	d, p := open(t)
	d.keepalive = 1
	g := shared.Boot(t, node.Spec{Firmware: true})
	events := listen(t, d)
	node.Eventually(t, testTimeout, d.Up, "connected")
	i := instance(t, d, g.Domain)
	p.silence()
	asked := make(chan error, 1)
	go func() { asked <- d.Ask(t.Context(), g.Domain, i, grace.ModeACPI) }()
	node.Eventually(t, testTimeout, func() bool { return !d.Up() }, "the silence is noticed")
	p.cut(t)
	if err := <-asked; !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("a call into the silence: %v", err)
	}
	p.mend(t)
	node.Eventually(t, testTimeout, func() bool { return d.Up() && events.count(hypervisor.Event{}) == 2 }, "connected again")
	if err := d.Ask(bounded(t), g.Domain, i, grace.ModeACPI); err != nil {
		t.Error(err)
	}
}
