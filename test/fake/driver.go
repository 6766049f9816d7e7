package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

var _ hypervisor.Driver = (*Hypervisor)(nil)

// How long libvirt takes to kill a QEMU that ignores SIGTERM, and to give up one that
// cannot be killed.
const (
	destroyKills   = 10 * time.Second
	destroyGivesUp = 40 * time.Second
)

// List implements hypervisor.Driver. It works while libvirt is down, like the
// real one, with Power unknown.
func (h *Hypervisor) List(ctx context.Context, ours func(name string) bool) ([]hypervisor.Domain, error) {
	if err := h.enter(ctx, Call{Op: OpList}); err != nil {
		return nil, failed("list", "domains", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []hypervisor.Domain
	for name, d := range h.domains {
		if ours(name) && h.visible(d) {
			all = append(all, h.show(d))
		}
	}
	slices.SortFunc(all, func(a, b hypervisor.Domain) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Get implements hypervisor.Driver.
func (h *Hypervisor) Get(ctx context.Context, name string) (hypervisor.Domain, error) {
	if err := h.enter(ctx, Call{Op: OpGet, Domain: name}); err != nil {
		return hypervisor.Domain{}, failed("look at", name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.domains[name]
	switch {
	case d != nil && h.visible(d):
		return h.show(d), nil
	case h.down:
		return hypervisor.Domain{}, failed("look at", name, hypervisor.ErrUnavailable)
	default:
		return hypervisor.Domain{}, failed("look at", name, hypervisor.ErrNotFound)
	}
}

// visible hides a domain whose process is gone while libvirt is down.
func (h *Hypervisor) visible(d *domain) bool { return !h.down || !d.gone }

func (h *Hypervisor) show(d *domain) hypervisor.Domain {
	dom := hypervisor.Domain{
		Name: d.Name, Domain: grace.Domain{Instance: d.instance, Power: d.power, Paused: d.paused, Agent: d.Agent, Grace: d.Grace},
		Persistent: d.Persistent, Autostart: d.Autostart,
	}
	if d.gone {
		dom.Instance = grace.Instance{UUID: d.UUID}
	}
	if h.down {
		dom.Power, dom.Persistent, dom.Autostart = grace.PowerUnknown, false, false
	}
	return dom
}

// Ask implements hypervisor.Driver.
func (h *Hypervisor) Ask(ctx context.Context, name string, i grace.Instance, m grace.Mode) error {
	err := h.enter(ctx, Call{Op: OpAsk, Domain: name, Mode: m})
	if err == nil {
		err = h.ask(ctx, name, i, m)
	}
	return failed("ask by "+string(m), name, err)
}

func (h *Hypervisor) ask(ctx context.Context, name string, i grace.Instance, m grace.Mode) error {
	h.mu.Lock()
	d, err := h.find(name, i)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := sleep(ctx, d.AskTakes); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case d.gone:
		return hypervisor.ErrNotFound
	case d.power != grace.PowerOn:
		return fmt.Errorf("%w: it is %s", hypervisor.ErrState, d.power)
	case m == grace.ModeAgent && (!d.Agent || d.NoAgent):
		return hypervisor.ErrNoAgent
	case m == grace.ModeAgent && d.Refuses != "":
		return hypervisor.Refused(d.Refuses)
	}
	if d.pressed++; d.pressed == d.Presses {
		time.AfterFunc(d.ShutsDown, func() { h.powerOff(d) })
	}
	return nil
}

// Resume implements hypervisor.Driver.
func (h *Hypervisor) Resume(ctx context.Context, name string, i grace.Instance) error {
	return h.change(ctx, Call{Op: OpResume, Domain: name}, i, func(d *domain) error {
		switch d.power {
		case grace.PowerOn:
		case grace.PowerPaused, grace.PowerSuspended:
			d.power = grace.PowerOn
			h.emit(hypervisor.Event{Name: name, UUID: d.UUID})
		default:
			return fmt.Errorf("%w: it is %s", hypervisor.ErrState, d.power)
		}
		return nil
	})
}

// Destroy implements hypervisor.Driver: SIGTERM, and SIGKILL after 10 s.
func (h *Hypervisor) Destroy(ctx context.Context, name string, i grace.Instance) error {
	var found *domain
	err := h.change(ctx, Call{Op: OpDestroy, Domain: name}, i, func(d *domain) error {
		found, d.destroyed = d, true
		d.proc.signal(h, unix.SIGTERM)
		return nil
	})
	if err != nil {
		return err
	}
	if found.proc.wait(ctx, destroyKills) {
		return nil
	}
	h.mu.Lock()
	found.proc.signal(h, unix.SIGKILL)
	h.mu.Unlock()
	if found.proc.wait(ctx, destroyGivesUp-destroyKills) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return failed("destroy", name, err)
	}
	return failed("destroy", name, errors.New("failed to terminate process: Device or resource busy"))
}

// Ended implements hypervisor.Driver.
func (h *Hypervisor) Ended(ctx context.Context, name string, i grace.Instance) (grace.End, error) {
	err := h.enter(ctx, Call{Op: OpEnded, Domain: name})
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ends[i], failed("ask for the end of", name, err)
}

// change does something to an instance, under the lock.
func (h *Hypervisor) change(ctx context.Context, c Call, i grace.Instance, do func(*domain) error) error {
	if err := h.enter(ctx, c); err != nil {
		return failed(string(c.Op), c.Domain, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.find(c.Domain, i)
	if err == nil {
		err = do(d)
	}
	return failed(string(c.Op), c.Domain, err)
}

// find returns the domain if it is this instance and libvirt can be reached.
func (h *Hypervisor) find(name string, i grace.Instance) (*domain, error) {
	d := h.domains[name]
	switch {
	case h.down:
		return nil, hypervisor.ErrUnavailable
	case d == nil:
		return nil, hypervisor.ErrNotFound
	case d.UUID != i.UUID, d.instance != i:
		return nil, hypervisor.ErrOtherInstance
	case d.gone:
		return nil, hypervisor.ErrNotFound
	}
	return d, nil
}

// enter records a call, and lets it hang if the script says so.
func (h *Hypervisor) enter(ctx context.Context, c Call) error {
	h.mu.Lock()
	h.note(c)
	held := h.hung[hang{c.Op, c.Domain}]
	h.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func failed(op, domain string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, domain, err)
}
