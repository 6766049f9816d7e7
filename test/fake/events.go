package fake

import (
	"context"
	"slices"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// queue holds the events for one receiver. It has no bound: tests are short.
type queue struct {
	events []hypervisor.Event // guarded by the hypervisor's mu
	wake   chan struct{}
}

// Run gives the events to the sink, one after the other, until ctx ends. As with the real
// one, an event without a name means that anything may have changed.
func (h *Hypervisor) Run(ctx context.Context, sink func(hypervisor.Event)) error {
	q := &queue{wake: make(chan struct{}, 1)}
	h.mu.Lock()
	h.sinks = append(h.sinks, q)
	if !h.down {
		q.push(hypervisor.Event{})
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.sinks = slices.DeleteFunc(h.sinks, func(other *queue) bool { return other == q })
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-q.wake:
			h.mu.Lock()
			events := q.events
			q.events = nil
			h.mu.Unlock()
			for _, e := range events {
				sink(e)
			}
		}
	}
}

// Up reports whether libvirt can be reached.
func (h *Hypervisor) Up() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.down
}

// PausedBy pauses a domain so that it is not to be resumed.
func (h *Hypervisor) PausedBy(name, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[name]; d != nil {
		d.paused, d.power = what, grace.PowerPausedOther
		h.emit(hypervisor.Event{Name: name, UUID: d.UUID})
	}
}

// Connect opens the channel of a domain's guest agent, with the words by which it refuses, "" if
// it does not.
func (h *Hypervisor) Connect(name, refuses string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[name]; d != nil {
		d.Agent, d.Refuses = true, refuses
		h.emit(hypervisor.Event{Name: name, UUID: d.UUID})
	}
}

// Emit sends an event without a cause.
func (h *Hypervisor) Emit(e hypervisor.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.emit(e)
}

func (h *Hypervisor) emit(e hypervisor.Event) {
	if h.down {
		return
	}
	for _, q := range h.sinks {
		q.push(e)
	}
}

func (q *queue) push(e hypervisor.Event) {
	q.events = append(q.events, e)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
