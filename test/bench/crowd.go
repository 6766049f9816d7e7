package main

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	// turnsTaken is how many migrations end while the CPU for each is measured.
	turnsTaken = 20
	// collected is how long memory rests before it is measured: Go collects garbage after 2 minutes at
	// the latest.
	collected = 130 * time.Second
)

// crowd measures row p: a cluster-controller in a very large cluster, in which a tenth of the VMs wait for
// their migration. The bench plays scheduler, kubelets and agents.
func crowd(b *bench) []figure {
	var nodes []string
	for n := range max(b.crowd/4, 20) {
		nodes = append(nodes, fmt.Sprintf("node-%05d", n))
	}
	c := b.crew(nodes, b.crowd)
	c.controllers = "*"
	waiting := b.crowd / 10
	line := func(what, target string, u unit, value float64) figure {
		return figure{row: "p", what: fmt.Sprintf("%d nodes, %d VMIs with launcher pods: %s", len(nodes), b.crowd, what), target: target, unit: u, ours: []float64{value}}
	}
	begin := time.Now()
	p, _ := c.start()
	c.rest()
	first := time.Since(begin).Seconds()
	c.stop(p)
	p, ready := c.start()
	c.rest()
	c.markAll(c.names[:waiting])
	c.rest()
	running := c.begin(nodes, parallel)
	c.rest()

	b.pause(collected) // the last of the burst, and what it has left in memory, is not rest
	at, asked, before := time.Now(), c.requests(), b.used(p)
	b.pause(max(b.idle, collected))
	rested, took := b.used(p), time.Since(at).Seconds()
	rest, rss := (c.requests()-asked)/took, b.memory(p)
	ended := 0.0
	for range turnsTaken {
		from := b.used(p).cpu
		c.arrive(running[0])
		c.waiting(1)
		ended += (b.used(p).cpu - from) / turnsTaken
		running = append(running[1:], c.begin(nodes, 1)...)
	}
	c.rest()
	cost := (b.used(p).cpu - rested.cpu) / turnsTaken
	return []figure{
		line("start → all have their budgets, the first time", "", seconds, first),
		line("start → ready", "≤ 20 s", seconds, ready),
		line(fmt.Sprintf("%d migrations wait: RSS after 260 s of rest", waiting), "is stated", mebibytes, rss),
		line("the same: CPU at rest, of a core", "≤ 0.1 %", percent, (rested.cpu-before.cpu)/took),
		line("the same: requests to the API server a second at rest, without the Lease's", "0", perSecond, rest),
		line("the same: a migration ends, and the next one has its turn and its target pod: CPU", "≤ 5 ms", seconds, ended),
		line("the same: a whole migration: CPU", "", seconds, cost),
		line("the same: the leader is killed → the next one begins a migration", "≤ 17 s: the lease and 2 s", seconds, c.failOver(p, running, waiting-turnsTaken)),
	}
}

// parallel is how many migrations run at once, by default.
const parallel = 5

// markAll marks VMs to leave their nodes.
func (c *crew) markAll(vms []string) {
	c.Helper()
	on := map[string]string{}
	for name, vms := range c.vmis {
		for _, vm := range vms {
			on[vm] = name
		}
	}
	for _, vm := range vms {
		c.must(c.ask(http.MethodPatch, vmiPath(c.space(vm), vm)+"/status", fmt.Sprintf(`{"status":{"evacuationNodeName":%q}}`, on[vm])))
	}
}

// failOver kills the leader and lets a migration end. It returns the seconds until another replica begins
// the next one. It fails if a migration or a mark was lost.
func (c *crew) failOver(leader *node.Process, running []moving, want int) float64 {
	c.Helper()
	port, err := node.FreePort()
	c.must(err)
	next := c.replica(port)
	c.rest()
	begun := len(c.targets())
	begin := time.Now()
	leader.Kill()
	c.report(running[0])
	node.Eventually(c, time.Minute, func() bool { return len(c.targets()) > begun }, "the next leader begins a migration")
	took := time.Since(begin).Seconds()
	if !leads(next) {
		c.Fatalf("nobody leads")
	}
	c.rest()
	unfinished := slices.DeleteFunc(c.migrations(), func(m moving) bool { return m.final })
	vms := map[string]bool{}
	for _, m := range unfinished {
		vms[m.vmi] = true
	}
	if len(unfinished) != want-1 || len(vms) != want-1 {
		c.Fatalf("%d migrations of %d VMs have not ended, want %d", len(unfinished), len(vms), want-1)
	}
	return took
}
