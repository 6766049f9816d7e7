// Package drivertest is the contract of hypervisor.Driver as a test suite. A driver that
// passes can be used by the agent. The scripted fake and the real libvirt driver both
// pass.
package drivertest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Guest is a kind of guest.
type Guest int

// The guests.
const (
	Polite Guest = iota // heeds the power button
	Deaf
	Refusing // its agent refuses to shut it down, see Refusal
	Frozen   // its agent refuses to shut it down while its file systems are frozen, as they are
	Panicked // it panics, and its process is kept
)

// Refusal is in what a Refusing guest answers.
const Refusal = "Failed to schedule shutdown: Access denied"

// Harness is a hypervisor under test, and the actions on its domains.
type Harness struct {
	Driver hypervisor.Driver
	// Run keeps the event connection, see the driver.
	Run func(ctx context.Context, sink func(hypervisor.Event)) error
	// Start starts a domain with a new name that passes the suite's filter, waits until
	// the guest listens and returns the name. The domain ends with the test.
	Start func(t *testing.T, g Guest) string
	// Pause pauses a domain as a user would. Pause, Cut and Mend are nil if the tests
	// that need them are in Without.
	Pause func(t *testing.T, name string)
	// Restart ends a domain and starts it again, as another instance.
	Restart func(t *testing.T, name string)
	// Freeze makes calls about a domain hang, until the test ends.
	Freeze func(t *testing.T, name string)
	// Cut makes the hypervisor unreachable until Mend.
	Cut, Mend func(t *testing.T)
}

// Suite describes a run of the contract.
type Suite struct {
	// New makes a fresh harness that ends with the test.
	New func(t *testing.T) *Harness
	// Around calls f, as synctest.Test does. nil just calls f.
	Around func(t *testing.T, f func(t *testing.T))
	// Timeout bounds every wait for which the contract has no bound.
	Timeout time.Duration
	// Without lists tests that do not apply, by name, each with its reason.
	Without map[string]string
}

// missing is the name of a domain that never existed.
const missing = "vmgrace-test_never-was"

// Run runs the contract.
func Run(t *testing.T, s Suite) {
	t.Helper()
	if s.Around == nil {
		s.Around = func(t *testing.T, f func(t *testing.T)) { t.Helper(); f(t) }
	}
	for _, c := range []struct {
		name string
		test func(*contract)
	}{
		{"ListShowsOursAlone", (*contract).listShowsOursAlone},
		{"GetShowsWhatRuns", (*contract).getShowsWhatRuns},
		{"UnreachableIsNotNotFound", (*contract).unreachableIsNotNotFound},
		{"APoliteGuestEndsWhenAsked", (*contract).aPoliteGuestEndsWhenAsked},
		{"APausedGuestIsResumedFirst", (*contract).aPausedGuestIsResumedFirst},
		{"ARefusalIsInTheGuestsWords", (*contract).aRefusalIsInTheGuestsWords},
		{"AFrozenGuestIsThawedFirst", (*contract).aFrozenGuestIsThawedFirst},
		{"APanickedGuestHasCrashed", (*contract).aPanickedGuestHasCrashed},
		{"AnotherInstanceIsLeftAlone", (*contract).anotherInstanceIsLeftAlone},
		{"DestroyEndsADeafGuest", (*contract).destroyEndsADeafGuest},
		{"AReconnectSaysLookAgain", (*contract).aReconnectSaysLookAgain},
		{"AHungDomainDelaysNoOther", (*contract).aHungDomainDelaysNoOther},
		{"AnEndedContextEndsTheCall", (*contract).anEndedContextEndsTheCall},
	} {
		if s.Without[c.name] != "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s.Around(t, func(t *testing.T) {
				t.Helper()
				c.test(&contract{T: t, Harness: s.New(t), timeout: s.Timeout})
			})
		})
	}
}

// contract is one test of the suite.
type contract struct {
	*testing.T
	*Harness
	timeout time.Duration
	events  events
}

// ctx bounds one call.
func (c *contract) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.Context(), c.timeout)
	c.Cleanup(cancel)
	return ctx
}

// eventually polls until cond holds.
func (c *contract) eventually(cond func() bool, what string) {
	c.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(c.timeout); !cond(); <-tick.C {
		if time.Now().After(end) {
			c.Fatalf("not within %v: %s", c.timeout, what)
		}
	}
}

// get returns a domain that must be there.
func (c *contract) get(name string) hypervisor.Domain {
	c.Helper()
	d, err := c.Driver.Get(c.ctx(), name)
	if err != nil {
		c.Fatalf("get %s: %v", name, err)
	}
	return d
}

// instance waits until a domain's process is known too, and returns it.
func (c *contract) instance(name string) grace.Instance {
	c.Helper()
	var i grace.Instance
	c.eventually(func() bool { i = c.get(name).Instance; return i.PID != 0 }, "the process is identified")
	return i
}

// listen collects events until the test ends, and waits for the first.
func (c *contract) listen() {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Harness.Run(ctx, c.events.add) }()
	c.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				c.Errorf("Run: %v", err)
			}
		case <-time.After(c.timeout):
			c.Error("Run does not end with its context")
		}
	})
	c.eventually(func() bool { return c.events.count(hypervisor.Event{}) == 1 }, "the first connect says: look at everything")
}

// events is what the sink got.
type events struct {
	mu  sync.Mutex
	all []hypervisor.Event
}

func (e *events) add(ev hypervisor.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) count(ev hypervisor.Event) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, other := range e.all {
		if other == ev {
			n++
		}
	}
	return n
}

// ends returns the ends that the events named for a domain, each once.
func (e *events) ends(name string) []grace.End {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ends []grace.End
	for _, ev := range e.all {
		if ev.Name == name && ev.End != grace.EndUnknown {
			ends = append(ends, ev.End)
		}
	}
	return slices.Compact(ends)
}
