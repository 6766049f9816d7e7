package main

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// The guests of row j.
const (
	healthyGuests = 15
	frozenGuests  = 5
)

// neighbour is row j: frozen QEMUs beside healthy ones, and all are to be shut
// down. The frozen ones are told first.
func neighbour(b *bench) []figure {
	var beside, alone [2][]float64
	for range b.rounds {
		for i, took := range b.bystanders(frozenGuests) {
			beside[i] = append(beside[i], took)
		}
		for i, took := range b.bystanders(0) {
			alone[i] = append(alone[i], took)
		}
	}
	line := func(which string, i int) figure {
		return figure{
			row: "j", unit: seconds, target: "≤ 1.1 × alone", ours: beside[i], floor: alone[i],
			what: fmt.Sprintf("a hung neighbour: SIGTERM → QEMU gone of %d guests, %s, with %d frozen ones shut down at once; floor: vmgrace with the %d alone",
				healthyGuests, which, frozenGuests, healthyGuests),
		}
	}
	return []figure{line("median", 0), line("slowest", 1)}
}

// bystanders shuts down healthy guests together with some frozen ones and
// returns how many seconds the healthy ones took: the median and the most.
func (b *bench) bystanders(frozen int) (took [2]float64) {
	b.Helper()
	b.round(func(b *bench) {
		guests := b.boot(frozen + healthyGuests)
		shims := b.shimmed(guests)
		b.pause(bootRest)
		for _, g := range guests[:frozen] {
			g.Signal(b, unix.SIGSTOP)
		}
		b.terminate(shims[:frozen])
		begin := b.terminate(shims[frozen:])
		var mu sync.Mutex
		var each []float64
		b.parallel(guests[frozen:], func(g *node.Guest) error {
			gone := g.WaitGone(b, offTimeout)
			mu.Lock()
			defer mu.Unlock()
			each = append(each, gone.Sub(begin).Seconds())
			return nil
		})
		if b.Failed() {
			return // WaitGone gave up, in a goroutine of its own
		}
		b.offByThemselves(guests[frozen:])
		took = [2]float64{median(each), quantile(each, 1)}
	})
	return took
}
