package main

import (
	"fmt"
	"time"
)

// watchedVMIs is the number of VMIs of the node in row f.
const watchedVMIs = 500

// watching measures row f in a cluster: VMIs without domains, and nothing happens.
func watching(b *bench) []figure {
	const nodeName = "node-idle"
	f := b.fleet()
	f.fill(nodeName, watchedVMIs)
	w := f.watcher(nodeName)
	w.watch()
	line := func(what, target string, u unit, value float64) figure {
		return figure{row: "f", what: fmt.Sprintf("idle with %d VMIs watched: %s", watchedVMIs, what), target: target, unit: u, ours: []float64{value}}
	}
	begin, before := time.Now(), b.used(w.Process)
	b.pause(b.idle)
	after, took := b.used(w.Process), time.Since(begin).Seconds()
	return []figure{
		line("RSS", "", mebibytes, b.memory(w.Process)),
		line("CPU, of a core", "", percent, (after.cpu-before.cpu)/took),
		line("wake-ups", "", perSecond, (after.wakeups-before.wakeups)/took),
	}
}
