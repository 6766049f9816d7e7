package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

func (c *contract) listShowsOursAlone() {
	mine, other := c.Start(c.T, Deaf), c.Start(c.T, Deaf)
	all, err := c.Driver.List(c.ctx(), func(name string) bool { return name == mine })
	if err != nil {
		c.Fatal(err)
	}
	if len(all) != 1 || all[0] != c.get(mine) {
		c.Errorf("listed %+v, want %+v alone", all, c.get(mine))
	}
	both, err := c.Driver.List(c.ctx(), func(name string) bool { return name == mine || name == other })
	if err != nil || len(both) != 2 {
		c.Errorf("listed %+v, %v, want both", both, err)
	}
}

func (c *contract) getShowsWhatRuns() {
	name := c.Start(c.T, Deaf)
	d := c.get(name)
	if d.Name != name || d.Power != grace.PowerOn || d.Instance.UUID == "" || d.Instance.PID == 0 || d.Instance.Start == 0 {
		c.Errorf("got %+v", d)
	}
	if d.Persistent || d.Autostart || d.Agent || d.Grace != "" {
		c.Errorf("got %+v, but it is transient, without agent and grace period", d)
	}
	_, err := c.Driver.Get(c.ctx(), missing)
	c.fails(err, hypervisor.ErrNotFound, "get what never was")
	if !strings.Contains(fmt.Sprint(err), missing) {
		c.Errorf("the error %v does not say which domain", err)
	}
}

func (c *contract) unreachableIsNotNotFound() {
	name := c.Start(c.T, Deaf)
	i := c.instance(name)
	c.Cut(c.T)
	d, err := c.Driver.Get(c.ctx(), name)
	switch {
	case err == nil && (d.Power != grace.PowerUnknown || d.Instance != i):
		c.Errorf("got %+v from a hypervisor that cannot be reached", d)
	case err != nil:
		c.fails(err, hypervisor.ErrUnavailable, "get")
	}
	_, err = c.Driver.Get(c.ctx(), missing)
	c.fails(err, hypervisor.ErrUnavailable, "get what never was")
	all, err := c.Driver.List(c.ctx(), func(other string) bool { return other == name })
	if err == nil && len(all) != 1 {
		c.Error("what cannot be listed looks like nothing")
	}
	c.fails(c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI), hypervisor.ErrUnavailable, "ask")
	c.fails(c.Driver.Resume(c.ctx(), name, i), hypervisor.ErrUnavailable, "resume")
	c.fails(c.Driver.Destroy(c.ctx(), name, i), hypervisor.ErrUnavailable, "destroy")
	c.Mend(c.T)
	c.eventually(func() bool { return c.get(name).Power == grace.PowerOn }, "it can be reached again")
	if got := c.get(name).Instance; got != i {
		c.Errorf("the instance is %+v now, was %+v", got, i)
	}
}

func (c *contract) aPoliteGuestEndsWhenAsked() {
	c.listen()
	name := c.Start(c.T, Polite)
	i := c.instance(name)
	if end, err := c.Driver.Ended(c.ctx(), name, i); end != grace.EndUnknown {
		c.Errorf("it runs, and ended as %q, %v", end, err)
	}
	c.fails(c.Driver.Ask(c.ctx(), name, i, grace.ModeAgent), hypervisor.ErrNoAgent, "ask an agent that is not there")
	if err := c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI); err != nil {
		c.Fatal(err)
	}
	c.gone(name, i)
	c.endsAs(name, i, grace.EndGuest)
	c.fails(c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI), hypervisor.ErrNotFound, "ask what ended")
}

func (c *contract) aPausedGuestIsResumedFirst() {
	name := c.Start(c.T, Polite)
	i := c.instance(name)
	c.Pause(c.T, name)
	if p := c.get(name).Power; p != grace.PowerPaused {
		c.Errorf("a paused domain is %q", p)
	}
	c.fails(c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI), hypervisor.ErrState, "ask a paused guest")
	for range 2 { // a running domain stays as it is
		if err := c.Driver.Resume(c.ctx(), name, i); err != nil {
			c.Fatal(err)
		}
	}
	if err := c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI); err != nil {
		c.Fatal(err)
	}
	c.gone(name, i)
}

func (c *contract) withAgent(g Guest) (string, grace.Instance) {
	name := c.Start(c.T, g)
	i := c.instance(name)
	c.eventually(func() bool { return c.get(name).Agent }, "its agent is there")
	return name, i
}

// Given a guest whose agent refuses, when it is asked, then the error has the guest's own words.
func (c *contract) aRefusalIsInTheGuestsWords() {
	name, i := c.withAgent(Refusing)
	err := c.Driver.Ask(c.ctx(), name, i, grace.ModeAgent)
	var refused *hypervisor.Refusal
	if !errors.As(err, &refused) || !strings.HasSuffix(refused.Words(), Refusal) || errors.Is(err, hypervisor.ErrNoAgent) {
		c.Errorf("got %v, want a refusal with %q", err, Refusal)
	}
}

// Given a guest whose file systems a backup has frozen, when its agent is asked, then it ends.
func (c *contract) aFrozenGuestIsThawedFirst() {
	name, i := c.withAgent(Frozen)
	if err := c.Driver.Ask(c.ctx(), name, i, grace.ModeAgent); err != nil {
		c.Fatal(err)
	}
	c.gone(name, i)
}

// Given a guest that has panicked, when it is looked at, then it is there and has crashed, and
// nothing can be asked of it.
func (c *contract) aPanickedGuestHasCrashed() {
	name := c.Start(c.T, Panicked)
	i := c.instance(name)
	c.eventually(func() bool { return c.get(name).Power == grace.PowerCrashed }, "it has crashed")
	c.fails(c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI), hypervisor.ErrState, "ask a panicked guest")
	c.fails(c.Driver.Resume(c.ctx(), name, i), hypervisor.ErrState, "resume a panicked guest")
	all, err := c.Driver.List(c.ctx(), func(other string) bool { return other == name })
	if err != nil || len(all) != 1 || all[0].Instance != i {
		c.Errorf("listed %+v, %v", all, err)
	}
}

func (c *contract) anotherInstanceIsLeftAlone() {
	name := c.Start(c.T, Deaf)
	old := c.instance(name)
	c.Restart(c.T, name)
	fresh := c.instance(name)
	if fresh == old {
		c.Fatal("the new instance looks like the old one")
	}
	const stranger = "11111111-2222-4333-8444-555555555555"
	for _, i := range []grace.Instance{
		old, {UUID: fresh.UUID}, {UUID: stranger}, {UUID: stranger, PID: fresh.PID, Start: fresh.Start},
	} {
		c.fails(c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI), hypervisor.ErrOtherInstance, "ask")
		c.fails(c.Driver.Resume(c.ctx(), name, i), hypervisor.ErrOtherInstance, "resume")
		c.fails(c.Driver.Destroy(c.ctx(), name, i), hypervisor.ErrOtherInstance, "destroy")
	}
	if d := c.get(name); d.Instance != fresh || d.Power != grace.PowerOn {
		c.Errorf("the new instance %+v was touched: %+v", fresh, d)
	}
}

func (c *contract) destroyEndsADeafGuest() {
	c.listen()
	name := c.Start(c.T, Deaf)
	i := c.instance(name)
	if err := c.Driver.Ask(c.ctx(), name, i, grace.ModeACPI); err != nil {
		c.Fatal(err)
	}
	if d := c.get(name); d.Instance != i {
		c.Fatalf("a deaf guest became %+v", d)
	}
	if err := c.Driver.Destroy(c.ctx(), name, i); err != nil {
		c.Fatal(err)
	}
	c.gone(name, i)
	c.endsAs(name, i, grace.EndDestroyed)
	c.fails(c.Driver.Destroy(c.ctx(), name, i), hypervisor.ErrNotFound, "destroy again")
}

func (c *contract) aReconnectSaysLookAgain() {
	c.listen()
	c.Cut(c.T)
	c.Mend(c.T)
	c.eventually(func() bool { return c.events.count(hypervisor.Event{}) == 2 }, "the second connect says: look at everything")
	name := c.Start(c.T, Deaf)
	c.eventually(func() bool { return c.events.count(hypervisor.Event{Name: name, UUID: c.get(name).Instance.UUID}) > 0 },
		"events arrive over the new connection")
}

func (c *contract) aHungDomainDelaysNoOther() {
	hung, well := c.Start(c.T, Deaf), c.Start(c.T, Deaf)
	hungInstance, wellInstance := c.instance(hung), c.instance(well)
	c.Freeze(c.T, hung)
	// Many more calls than one connection, or one pool, could take.
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	const calls = 30
	results := make(chan error, calls)
	for range calls {
		go func() { results <- c.Driver.Ask(ctx, hung, hungInstance, grace.ModeACPI) }()
	}
	for range 10 {
		if err := c.Driver.Ask(c.ctx(), well, wellInstance, grace.ModeACPI); err != nil {
			c.Fatalf("the neighbour of a hung domain: %v", err)
		}
	}
	if d := c.get(well); d.Power != grace.PowerOn {
		c.Errorf("the neighbour of a hung domain: %+v", d)
	}
	select {
	case err := <-results:
		c.Errorf("this proves nothing, the domain is not hung: %v", err)
	default:
	}
	if err := c.Driver.Destroy(c.ctx(), well, wellInstance); err != nil {
		c.Errorf("destroy the neighbour of a hung domain: %v", err)
	}
	cancel()
	for range calls {
		if err := <-results; err == nil {
			c.Error("a hung domain has heard a request")
		}
	}
}

func (c *contract) anEndedContextEndsTheCall() {
	name := c.Start(c.T, Deaf)
	i := c.instance(name)
	c.Freeze(c.T, name)
	ctx, cancel := context.WithTimeout(c.Context(), 300*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Driver.Ask(ctx, name, i, grace.ModeACPI) }()
	select {
	case err := <-ended:
		c.fails(err, context.DeadlineExceeded, "ask a hung domain")
	case <-time.After(c.timeout):
		c.Fatal("the call goes on although its context has ended")
	}
}

// gone waits for the end of an instance.
func (c *contract) gone(name string, i grace.Instance) {
	c.Helper()
	c.eventually(func() bool {
		_, err := c.Driver.Get(c.ctx(), name)
		if err != nil {
			c.fails(err, hypervisor.ErrNotFound, "get")
		}
		return err != nil
	}, "the instance is gone: "+i.UUID)
}

// endsAs checks that event and later question give the same reason, and only this one.
func (c *contract) endsAs(name string, i grace.Instance, want grace.End) {
	c.Helper()
	c.eventually(func() bool {
		end, err := c.Driver.Ended(c.ctx(), name, i)
		if err != nil {
			c.Fatal(err)
		}
		if end != grace.EndUnknown && end != want {
			c.Fatalf("it ended as %q, want %q", end, want)
		}
		return end == want
	}, "the reason of the end is known")
	c.eventually(func() bool { return len(c.events.ends(name)) > 0 }, "an event names the end")
	if ends := c.events.ends(name); !slices.Equal(ends, []grace.End{want}) {
		c.Errorf("events say %q, want %q", ends, want)
	}
}

func (c *contract) fails(err, want error, what string) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("%s: got %v, want %v", what, err, want)
	}
}
