package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/internal/kube"
	"github.com/vmgrace/vmgrace/test/node"
)

// watchedVMIs are those of the node in row f.
const watchedVMIs = 500

// watching is row f in a cluster: VMIs that have no domain, and nothing happens.
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
		line("RSS", "≤ 45 MiB", mebibytes, b.memory(w.Process)),
		line("CPU, of a core", "", percent, (after.cpu-before.cpu)/took),
		line("wake-ups", "", perSecond, (after.wakeups-before.wakeups)/took),
	}
}

// crowded is a node with as many VMIs as a large cluster has in all.
const crowded = largeFleet

// crowd compares the memory of agents with few VMIs and with thousands.
func (f *fleet) crowd() []figure {
	f.Helper()
	const crowdedNode = "node-crowded"
	f.fill(crowdedNode, crowded)
	line := func(what, target string) figure {
		return figure{row: "i", what: fmt.Sprintf("memory for each of %d own VMIs: %s", crowded, what), target: target, unit: kibibytes}
	}
	watch, rss, heap := line("live heap of the watch alone", "≤ 4 KiB"), line("RSS of the agent", "≤ 4 KiB"), line("heap and stacks in it", "")
	for range f.rounds {
		watch.ours = append(watch.ours, (f.kept(crowdedNode)-f.kept(fewNode))/(crowded-fewOwn))
		var used [2]memory
		for i, name := range []string{fewNode, crowdedNode} {
			w := f.watcher(name)
			w.watch()
			m := w.Metrics(f)
			used[i] = memory{f.memory(w.Process), m["go_memstats_heap_inuse_bytes"] + m["go_memstats_stack_inuse_bytes"]}
			w.Kill()
		}
		rss.ours = append(rss.ours, (used[1].rss-used[0].rss)/(crowded-fewOwn))
		heap.ours = append(heap.ours, (used[1].heap-used[0].heap)/(crowded-fewOwn))
	}
	return []figure{watch, rss, heap}
}

// kept is the live heap of this process while it watches that node's VMIs and
// nobody guards them.
func (f *fleet) kept(nodeName string) float64 {
	f.Helper()
	source := kube.New(kube.Config{
		Kubeconfig: f.kubeconfig, Node: nodeName, Log: slog.New(slog.DiscardHandler), Now: f.now, Changed: func(_, _ string) {},
	})
	f.must(source.Open())
	ctx, cancel := context.WithCancel(f.Context())
	var group errgroup.Group
	group.Go(func() error { return source.Run(ctx) })
	node.Eventually(f, time.Minute, source.Up, "the VMIs are watched")
	runtime.GC()
	runtime.GC() // what had a finalizer, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	cancel()
	f.must(group.Wait())
	return float64(m.HeapAlloc)
}

type memory struct{ rss, heap float64 }
