package cluster

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// lookAtMemory is how often the use of memory is looked at.
	lookAtMemory = 30 * time.Second
	// atRest is how much is allocated at most within that time at rest. The renewals of the Lease take
	// some MiB.
	atRest = 16 << 20
)

// memory returns what a burst has left to the machine, once the controller has come to rest. Nearly all of
// its memory is caches, which hardly change: in a burst Go lets as much garbage again pile up, which is
// cheaper than to collect it often, and would keep that room.
type memory struct {
	allocated func() uint64 // bytes, since the start
	free      func()
}

func newMemory() memory { return memory{allocated: allocated, free: debug.FreeOSMemory} }

func allocated() uint64 {
	all := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64()
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: each replica has the caches.
func (memory) NeedLeaderElection() bool { return false }

// Start frees memory after each burst, until ctx ends.
func (m memory) Start(ctx context.Context) error {
	timer := time.NewTicker(lookAtMemory)
	defer timer.Stop()
	busy, before := true, m.allocated() // at the start the caches fill
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		was, now := busy, m.allocated()
		busy, before = now-before > atRest, now
		if was && !busy {
			m.free()
		}
	}
}
