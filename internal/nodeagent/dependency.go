package nodeagent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// How long to wait before what is needed is tried again.
const (
	retryMin = 500 * time.Millisecond
	retryMax = 5 * time.Second
)

// need is something that an agent cannot do its whole work without. Where it is
// missing the agent ends with an error, but not while a grace period is under
// way: no need is needed to send a signal.
type need struct {
	// try looks for it, or opens it; run uses it until ctx ends, and may be nil.
	try func(ctx context.Context) error
	run func(ctx context.Context) error

	met atomic.Bool
}

// check tries once.
func (n *need) check(ctx context.Context) error {
	err := n.try(ctx)
	n.met.Store(err == nil)
	return err
}

// keep tries and runs until ctx ends. The error is for an agent that guards no
// grace period.
func (n *need) keep(ctx context.Context, guarding func() bool, log *slog.Logger) error {
	said := ""
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := n.once(ctx)
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is no failure
		}
		n.met.Store(false)
		if !guarding() {
			return err
		}
		if err.Error() != said {
			said = err.Error()
			log.Error("not ready; going on because a grace period is under way, and trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (n *need) once(ctx context.Context) error {
	if !n.met.Load() {
		if err := n.check(ctx); err != nil {
			return err
		}
	}
	if n.run == nil {
		return nil
	}
	return n.run(ctx)
}
