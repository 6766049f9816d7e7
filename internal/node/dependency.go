package node

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// retryInterval is the pause between two tries of a dependency.
const retryInterval = time.Second

// dependency is something that an agent needs for its whole work. If it is missing the
// agent ends with an error, but not during a grace period: a signal needs no dependency.
type dependency struct {
	// try checks or opens it. run uses it until ctx ends, and may be nil.
	try func(ctx context.Context) error
	run func(ctx context.Context) error

	met atomic.Bool
}

// check tries once.
func (d *dependency) check(ctx context.Context) error {
	err := d.try(ctx)
	d.met.Store(err == nil)
	return err
}

// keep tries and runs until ctx ends. It returns an error only if the agent guards no
// grace period.
func (d *dependency) keep(ctx context.Context, guarding func() bool, log *slog.Logger) error {
	logged := ""
	for {
		var err error
		if !d.met.Load() {
			err = d.check(ctx)
		}
		if err == nil && d.run != nil {
			err = d.run(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is no failure
		}
		d.met.Store(false)
		if !guarding() {
			return err
		}
		if err.Error() != logged {
			logged = err.Error()
			log.Error("not ready; going on because a grace period is under way, and trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryInterval):
		}
	}
}
