package cluster

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Given a controller that has started. Then memory is freed once it has come to rest, and again only after
// another burst: at rest it costs nothing.
func TestMemoryIsFreedOnceAfterEachBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var total atomic.Uint64
		var freed atomic.Int32
		m := memory{allocated: total.Load, free: func() { freed.Add(1) }}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Start(ctx) }()
		synctest.Wait()
		// passes lets some looks pass, before each of which so much is allocated.
		passes := func(looks int, each uint64, want int32) {
			t.Helper()
			for range looks {
				total.Add(each)
				time.Sleep(lookAtMemory) //nolint:forbidigo // virtual
				synctest.Wait()
			}
			if n := freed.Load(); n != want {
				t.Errorf("freed %d times, want %d", n, want)
			}
		}
		passes(3, 100<<20, 0)
		passes(10, 5<<20, 1)
		passes(2, 100<<20, 1)
		passes(10, 5<<20, 2)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
