package nodeagent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/internal/metrics"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // fake time

func TestGarbageIsCollectedWhenNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGarbage(metrics.New())
		var collected []time.Duration
		begin := time.Now()
		g.collect = func() { collected = append(collected, time.Since(begin)) }
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { g.run(ctx); close(ended) }()

		// Given: nothing happens, then requests follow one another, and an end.
		pass(time.Hour)
		begin = time.Now()
		for range 10 {
			g.Reacted(grace.LauncherSignal, time.Millisecond)
			pass(garbageRest / 2)
		}
		pass(time.Second)
		g.Stopped(grace.LauncherSignal, grace.Graceful, time.Second)
		pass(time.Hour)
		end()
		<-ended
		// Then it was collected once after the requests, and once after the end.
		first := 9*garbageRest/2 + garbageRest
		second := 5*garbageRest + time.Second + garbageRest
		if len(collected) != 2 || collected[0] != first || collected[1] != second {
			t.Errorf("collected at %v, want %v and %v", collected, first, second)
		}
	})
}
