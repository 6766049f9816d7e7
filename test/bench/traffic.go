package main

import (
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/internal/kube"
	"github.com/vmgrace/vmgrace/test/node"
)

// The clusters of row i. Two of their nodes have an agent, and VMIs in the
// ratio of 1 to 10; the others have what is left.
const (
	fleetNodes             = 50
	smallFleet, largeFleet = 500, 5000
	fewOwn, manyOwn        = 10, 100
	fewNode, manyNode      = "node-00", "node-01"
)

// All changes of a round, one each interval: of 100 one is on the node with
// few VMIs and 10 are on that with many, in any cluster.
const (
	changes  = 400
	interval = time.Second / 20
)

// load is what one agent needed in one round: bytes received until it watched,
// bytes received and processor time a second while things changed.
type load struct{ list, churn, cpu float64 }

// traffic is row i: agents in a small and in a large cluster.
func traffic(b *bench) []figure {
	kube.SilenceLibraries()
	small, large := b.sized(smallFleet), b.sized(largeFleet)
	// The VMIs of both have the same names: the guests are those of both.
	small.guests = large.guests
	for _, name := range []string{fewNode, manyNode} {
		large.awaken(name)
		small.awaken(name)
	}
	var few, many, inSmall []load
	for range b.rounds {
		few, many = large.round(few, many)
		_, inSmall = small.round(nil, inSmall)
	}
	return append(compare(few, many, inSmall), small.crowd()...)
}

func compare(few, many, inSmall []load) []figure {
	line := func(what string, u unit, value func(load) float64) (f figure) {
		f = figure{row: "i", what: what, unit: u, target: "≤ 1.1 × in the small one", peerName: fmt.Sprintf("of %d", smallFleet)}
		for n := range many {
			f.ours, f.peer = append(f.ours, value(many[n])), append(f.peer, value(inSmall[n]))
		}
		return f
	}
	each := func(what string, u unit, value func(load) float64) (f figure) {
		f = figure{row: "i", what: what, unit: u, target: "≤ 1.1 × with few", peerName: fmt.Sprintf("%d own", fewOwn)}
		for n := range many {
			f.ours, f.peer = append(f.ours, value(many[n])/manyOwn), append(f.peer, value(few[n])/fewOwn)
		}
		return f
	}
	list := func(l load) float64 { return l.list }
	churn := func(l load) float64 { return l.churn }
	cpu := func(l load) float64 { return l.cpu }
	own := fmt.Sprintf("%d own VMs, which run, of %d VMIs: ", manyOwn, largeFleet)
	return []figure{
		line(own+"bytes received until they are watched", kilobytes, list),
		line(own+"bytes received a second, when of 20 changes a second 2 are own", kilobytes, churn),
		line(own+"CPU meanwhile, of a core", percent, cpu),
		each(own+"bytes until they are watched, for each", kilobytes, list),
		each(own+"bytes a second meanwhile, for each", kilobytes, churn),
		each(own+"CPU meanwhile, for each", percent, cpu),
	}
}

// sized makes a cluster of so many VMIs.
func (b *bench) sized(total int) *fleet {
	b.Helper()
	f := b.fleet()
	f.fill(fewNode, fewOwn)
	f.fill(manyNode, manyOwn)
	left := total - fewOwn - manyOwn
	for n := 2; n < fleetNodes; n++ {
		share := left / (fleetNodes - n)
		left -= share
		f.fill(fmt.Sprintf("node-%02d", n), share)
	}
	return f
}

// round starts an agent on both nodes, changes things, and appends what they needed.
func (f *fleet) round(few, many []load) (_, _ []load) {
	f.Helper()
	nodes := []string{fewNode, manyNode}
	watchers := []*watcher{f.watcher(fewNode), f.watcher(manyNode)}
	loads := make([]load, len(watchers))
	var shims []*node.Process
	for i, w := range watchers {
		shims = append(shims, w.launch(nodes[i])...)
		loads[i].list = w.watch()
		w.guards(nodes[i])
	}
	for i, w := range watchers {
		loads[i].churn, loads[i].cpu = -float64(w.wire.received.Load()), -f.cpu(w.PID())
	}
	begin := time.Now()
	f.churn(begin)
	f.pause(time.Until(begin.Add((changes + 20) * interval)))
	took := time.Since(begin).Seconds()
	for i, w := range watchers {
		loads[i].cpu = (loads[i].cpu + f.cpu(w.PID())) / took
		loads[i].churn = (loads[i].churn + float64(w.wire.received.Load())) / took
		w.Kill()
	}
	for _, s := range shims { // nobody is left to take that for the launchers' end
		s.Kill()
	}
	return append(few, loads[0]), append(many, loads[1])
}

func (f *fleet) churn(begin time.Time) {
	f.Helper()
	for n := range changes {
		f.pause(time.Until(begin.Add(time.Duration(n) * interval)))
		name := fmt.Sprintf("node-%02d", 2+n%(fleetNodes-2))
		switch {
		case n%100 == 0:
			name = fewNode
		case n%10 == 5:
			name = manyNode
		}
		f.must(f.change(name))
	}
	if late := time.Since(begin) - changes*interval; late > interval*10 {
		f.Fatalf("the API server is too slow for the changes: the last one is %v late", late)
	}
}
