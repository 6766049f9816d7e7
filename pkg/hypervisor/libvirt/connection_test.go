//go:build !unit

package libvirt

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/node"
)

// procLookup is REMOTE_PROC_DOMAIN_LOOKUP_BY_NAME (remote_protocol.x).
const procLookup = 23

// holdLookups lets every look for a domain's name hang.
func (p *proxy) holdLookups() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = func(frame []byte) bool { return binary.BigEndian.Uint32(frame[12:]) == procLookup }
}

// prepare waits until a domain is prepared on the connection for requests.
func prepare(t *testing.T, d *Driver, name string) {
	t.Helper()
	if err := d.requests.warm(bounded(t)); err != nil {
		t.Fatal(err)
	}
	d.Prepare(name)
	node.Eventually(t, testTimeout, func() bool {
		d.requests.mu.Lock()
		defer d.requests.mu.Unlock()
		if len(d.requests.idle) != 1 || d.requests.idle[0].prepared == nil {
			return false
		}
		is, err := d.requests.idle[0].prepared.GetName()
		return err == nil && is == name
	}, "the domain is looked up")
}

// started is a guest and which instance it is.
func started(t *testing.T, d *Driver) (*node.Guest, grace.Instance) {
	t.Helper()
	g := shared.Boot(t, node.Spec{Firmware: true})
	dom, err := d.Get(bounded(t), g.Domain)
	if err != nil {
		t.Fatal(err)
	}
	return g, dom.Instance
}

func TestAPreparedRequestIsOneQuestionToLibvirt(t *testing.T) {
	d, p := open(t)
	g, instance := started(t, d)
	prepare(t, d, g.Domain)
	p.holdLookups()
	if err := d.Ask(bounded(t), g.Domain, instance, grace.ModeACPI); err != nil {
		t.Errorf("asked without a further look for its name: %v", err)
	}
	p.mu.Lock()
	p.hold = nil
	p.mu.Unlock()
	if err := d.Ask(bounded(t), g.Domain, instance, grace.ModeACPI); err != nil {
		t.Errorf("asked once more: %v", err)
	}
}

func TestWhatWasPreparedIsNeverAnotherInstance(t *testing.T) {
	d, _ := open(t)
	g, first := started(t, d)
	for _, uuid := range []string{g.UUID, ""} { // the same one, and a new one
		prepare(t, d, g.Domain)
		g.Virsh(t, "destroy")
		spec := g.Spec
		spec.UUID = uuid
		g = shared.Boot(t, spec)
		err := d.Destroy(bounded(t), g.Domain, first)
		if !errors.Is(err, hypervisor.ErrNotFound) && !errors.Is(err, hypervisor.ErrOtherInstance) {
			t.Errorf("the destroy of an instance that has ended: %v", err)
		}
		err = d.Ask(bounded(t), g.Domain, first, grace.ModeACPI)
		if !errors.Is(err, hypervisor.ErrNotFound) && !errors.Is(err, hypervisor.ErrOtherInstance) {
			t.Errorf("a request to an instance that has ended: %v", err)
		}
		next, err := d.Get(bounded(t), g.Domain)
		if err != nil || next.Instance == first || next.Power != grace.PowerOn {
			t.Fatalf("the next instance: %+v, %v", next, err)
		}
		if err := d.Ask(bounded(t), g.Domain, next.Instance, grace.ModeACPI); err != nil {
			t.Errorf("the next instance is not asked: %v", err)
		}
		first = next.Instance
	}
}

func TestAPreparedDomainKeepsNoConnectionOpen(t *testing.T) {
	d, p := open(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	prepare(t, d, g.Domain)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// Less than the 30 s after which libvirtd gives up a client that is silent.
	node.Eventually(t, 10*time.Second, func() bool { open, _, _, _ := p.stats(); return open == 0 }, "the connection is closed")
}

func TestNothingIsPreparedOfWhatIsNotThere(t *testing.T) {
	d, p := open(t)
	d.requests.prepare("vmgrace-test_nobody") // nothing is connected, and nothing is for this
	if _, opened, _, _ := p.stats(); opened != 0 {
		t.Errorf("%d connections were opened for a hint", opened)
	}
	if err := d.requests.warm(bounded(t)); err != nil {
		t.Fatal(err)
	}
	d.requests.prepare("vmgrace-test_nobody")
	if d.requests.idle[0].prepared != nil {
		t.Error("something is prepared")
	}
}
