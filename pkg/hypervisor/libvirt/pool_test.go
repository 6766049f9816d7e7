//go:build !unit

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/node"
)

// someone is an instance of a missing domain.
var someone = grace.Instance{UUID: "11111111-2222-4333-8444-555555555555"}

// ask asks the domains in the background; stop ends that.
func ask(t *testing.T, d *Driver, m grace.Mode, names ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() { _ = d.Ask(ctx, name, someone, m) })
	}
	return func() { cancel(); wg.Wait() }
}

func hungNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("vmgrace-test_hung-%02d", i))
	}
	return names
}

func heldWithin(t *testing.T, p *proxy, want int) {
	t.Helper()
	node.Eventually(t, testTimeout, func() bool { _, _, _, held := p.stats(); return held >= want }, "%d calls hang", want)
}

func TestNoConnectionCarriesMoreThanOneCall(t *testing.T) {
	d, p := open(t)
	p.holdAbout("hung")
	defer ask(t, d, grace.ModeACPI, hungNames(60)...)()
	heldWithin(t, p, requestConns)
	defer ask(t, d, grace.ModeAgent, hungNames(30)...)()
	heldWithin(t, p, requestConns+agentConns)

	// The pools are full; queries and destroys are not affected.
	if _, err := d.Get(bounded(t), "vmgrace-test_well"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a query besides hung requests: %v", err)
	}
	if err := d.Destroy(bounded(t), "vmgrace-test_well", someone); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a destroy besides hung requests: %v", err)
	}
	open, _, worst, held := p.stats()
	if worst > 1 {
		t.Errorf("%d calls at once on one connection", worst)
	}
	if most := requestConns + agentConns + destroyConns + queryConns; open > most {
		t.Errorf("%d connections, want at most %d", open, most)
	}
	if want := requestConns + agentConns; held != want {
		t.Errorf("%d calls hang in libvirt, want %d", held, want)
	}
	p.cut(t)
}

func TestADomainThatHangsTakesOneSlot(t *testing.T) {
	d, p := open(t)
	p.holdAbout("hung")
	var same []string
	for range 40 {
		same = append(same, "vmgrace-test_hung")
	}
	defer ask(t, d, grace.ModeACPI, same...)()
	heldWithin(t, p, 1)
	for range 20 {
		if err := d.Ask(bounded(t), "vmgrace-test_well", someone, grace.ModeACPI); !errors.Is(err, hypervisor.ErrNotFound) {
			t.Fatalf("beside a domain that hangs: %v", err)
		}
	}
	if _, _, _, held := p.stats(); held != 1 {
		t.Errorf("one domain holds %d calls", held)
	}
	p.cut(t)
}

func TestABrokenConnectionIsReplaced(t *testing.T) {
	d, p := open(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	for range 3 {
		if dom, err := d.Get(bounded(t), g.Domain); err != nil || dom.Power != grace.PowerOn {
			t.Fatalf("%+v, %v", dom, err)
		}
		p.cut(t)
		node.Eventually(t, testTimeout, func() bool { return !alive(d.queries.idle[0].Connect) }, "the cut is noticed")
		p.mend(t)
	}
}

func TestIdleConnectionsAreClosedButOneForRequests(t *testing.T) {
	d, p := open(t)
	for _, p := range []*pool{d.requests, d.queries} {
		p.idleTime = 50 * time.Millisecond
	}
	p.holdAbout("hung")
	stop := ask(t, d, grace.ModeACPI, hungNames(3)...)
	heldWithin(t, p, 3)
	if _, err := d.Get(bounded(t), "vmgrace-test_well"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Fatal(err)
	}
	stop()
	p.cut(t) // lets the hung calls end
	p.mend(t)
	p.holdAbout("hung")
	stop = ask(t, d, grace.ModeACPI, hungNames(2)...) // two connections; these calls keep theirs
	defer stop()
	heldWithin(t, p, 5)
	p.mu.Lock()
	p.hold = nil
	p.mu.Unlock()
	if err := d.Ask(bounded(t), "vmgrace-test_well", someone, grace.ModeACPI); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := d.Get(bounded(t), "vmgrace-test_well"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Fatal(err)
	}
	node.Eventually(t, testTimeout, func() bool { open, _, _, _ := p.stats(); return open <= 2 }, "idle connections are closed, those of hung calls not")
	p.cut(t)
}

func TestTheWarmConnectionTakesTheFirstRequest(t *testing.T) {
	d, p := open(t)
	d.requests.idleTime = 50 * time.Millisecond
	listen(t, d)
	node.Eventually(t, testTimeout, func() bool { open, _, _, _ := p.stats(); return open == 2 }, "connections for events and for requests are open")
	node.Never(t, 300*time.Millisecond, func() bool { open, _, _, _ := p.stats(); return open != 2 }, "the warm connection is closed")
	if err := d.Ask(bounded(t), "vmgrace-test_well", someone, grace.ModeACPI); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Fatal(err)
	}
	if _, opened, _, _ := p.stats(); opened != 2 {
		t.Errorf("the first request made connection number %d", opened)
	}
}

func TestCloseSaysWhatHangsAndHeldCallsEndLater(t *testing.T) {
	d, p := open(t)
	p.holdAbout("hung")
	stop := ask(t, d, grace.ModeACPI, hungNames(3)...)
	heldWithin(t, p, 3)
	begin := time.Now()
	if err := d.Close(); err == nil {
		t.Error("Close does not say that calls hang")
	}
	if took := time.Since(begin); took > testTimeout/2 {
		t.Errorf("Close took %v", took)
	}
	stop()
	if _, err := d.Get(bounded(t), "vmgrace-test_well"); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("a call after Close: %v", err)
	}
	p.cut(t)
	node.Eventually(t, testTimeout, func() bool { return d.Close() == nil }, "the hung calls end with their connections")
}

func TestAReconnectLeavesNoDescriptors(t *testing.T) {
	d, p := open(t)
	events := listen(t, d)
	descriptors := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	settled := func(connects int) {
		node.Eventually(t, testTimeout, func() bool { return events.count(hypervisor.Event{}) == connects && d.Up() }, "connect number %d", connects)
		node.Eventually(t, testTimeout, func() bool { open, _, _, _ := p.stats(); return open == 2 }, "events and requests are connected")
	}
	settled(1)
	before := descriptors()
	for n := range 4 {
		p.cut(t)
		node.Eventually(t, testTimeout, func() bool { return !d.Up() }, "the loss is noticed")
		p.mend(t)
		settled(n + 2)
	}
	node.Eventually(t, testTimeout, func() bool { return descriptors() <= before }, "at most %d descriptors, as before", before)
}
