package nodeagent

import (
	"context"
	"runtime"
	"time"

	"github.com/vmgrace/vmgrace/internal/agent"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// garbageRest is how long nothing may have happened before garbage is
// collected: what a request or an end leaves to write and to tell is done by then.
const garbageRest = 150 * time.Millisecond

// garbage is collected after a request or an end, when nobody waits. Otherwise
// the heap is full during a request sooner or later, in the one moment in which
// much is allocated (measured: a collection for ten requests; docs/performance.md).
type garbage struct {
	agent.Meter
	made    chan struct{}
	collect func()
}

func newGarbage(m agent.Meter) *garbage {
	return &garbage{Meter: m, made: make(chan struct{}, 1), collect: runtime.GC}
}

// Reacted is called after a request.
func (g *garbage) Reacted(cause grace.Cause, after time.Duration) {
	g.Meter.Reacted(cause, after)
	g.tell()
}

// Stopped is called after an end.
func (g *garbage) Stopped(cause grace.Cause, outcome grace.Outcome, took time.Duration) {
	g.Meter.Stopped(cause, outcome, took)
	g.tell()
}

func (g *garbage) tell() {
	select {
	case g.made <- struct{}{}:
	default: // it is known
	}
}

// run collects until ctx ends. While there is no rest the runtime does it.
func (g *garbage) run(ctx context.Context) {
	rest := time.NewTimer(garbageRest)
	rest.Stop()
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.made:
			rest.Reset(garbageRest)
		case <-rest.C:
			g.collect()
		}
	}
}
