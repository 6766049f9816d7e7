package reboot

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
)

const (
	handlerTimeout = 5 * time.Second
	handlerCheck   = 30 * time.Second
	handlerRetry   = 2 * time.Second // while the API server does not answer
	reasonUnasked  = "GuestsNotAsked"
)

// Handler knows whether KubeVirt's virt-handler runs on this node. Without it nobody asks the
// guests when the node shuts down. Any goroutine may call Runs and Announced.
type Handler struct {
	// Ask asks the API server.
	Ask    func(ctx context.Context) (bool, error)
	Report func(agent.Event)
	Clock  hold.Clock
	Log    *slog.Logger

	news  chan struct{}
	state atomic.Int32 // one of the constants below
	down  atomic.Bool
}

const (
	handlerUnknown int32 = iota
	handlerRuns
	handlerMissing
)

// NewHandler returns a Handler that knows nothing before Run.
func NewHandler(ask func(context.Context) (bool, error), report func(agent.Event), clock hold.Clock, log *slog.Logger) *Handler {
	return &Handler{Ask: ask, Report: report, Clock: clock, Log: log, news: make(chan struct{}, 1)}
}

// Runs returns whether virt-handler runs, as last seen; known is false if that could not be
// asked.
func (h *Handler) Runs() (runs, known bool) {
	s := h.state.Load()
	return s == handlerRuns, s != handlerUnknown
}

// Announced is called when a shutdown begins and when it is called off. It does not block.
func (h *Handler) Announced(underWay bool) {
	h.down.Store(underWay)
	select {
	case h.news <- struct{}{}:
	default: // it looks anyway
	}
}

// Run asks at each announcement, and now and then, until ctx ends.
func (h *Handler) Run(ctx context.Context) error {
	for said := false; ; {
		h.ask(ctx)
		down := h.down.Load()
		if h.state.Load() == handlerMissing && down && !said {
			h.warn()
			said = true
		}
		said = said && down
		again := handlerCheck
		if h.state.Load() == handlerUnknown {
			again = handlerRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again):
		case <-h.news:
		}
	}
}

func (h *Handler) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handlerTimeout)
	defer cancel()
	runs, err := h.Ask(ctx)
	switch {
	case err != nil: // the API server's outage is logged by its watches
		h.state.Store(handlerUnknown)
	case runs:
		h.state.Store(handlerRuns)
	default:
		h.state.Store(handlerMissing)
	}
}

func (h *Handler) warn() {
	const text = "the node shuts down, and virt-handler does not run here: nobody asks the guests, and KubeVirt destroys them at the end of their grace periods"
	h.Log.Error(text)
	now := h.Clock.Wall().UTC()
	h.Report(agent.Event{OfNode: true, Reason: reasonUnasked, Warning: true, Key: now.String(), Message: text, At: now})
}
