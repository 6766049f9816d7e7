package agent

import (
	"context"
	"math"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// nodeTick is how often the agent checks whether the node may go down.
	nodeTick = 50 * time.Millisecond
	// nodeReportTimeout is how long the reports and removals of the last VMs may take,
	// once no instance is left.
	nodeReportTimeout = 300 * time.Millisecond
	// nodeFirstTimeout is how long VMs wait at the agent's start for logind's first
	// report. While the node shuts down, the end of a launcher is no cause of its own.
	nodeFirstTimeout = 500 * time.Millisecond
)

// node is what the VMs know of the node's shutdown. The agent's lock guards it, except keeper.
type node struct {
	keeper *NodeKeeper // nil if shutdowns are not delayed
	time   grace.NodeShutdownTime
	// goneAt is since when no instance is left, 0 while there is one.
	goneAt grace.Mono
	// turns are when the VMs that were there at its begin are asked.
	turns map[string]grace.Mono
}

// delaysShutdowns makes the keeper of the node's shutdown.
func (a *Agent) delaysShutdowns() {
	report := func(Event) {}
	if a.cfg.Cluster != nil {
		report = a.cfg.Cluster.Report
	}
	a.node = node{time: a.cfg.NodeShutdown, keeper: NewNodeKeeper(NodeConfig{
		Inhibitor: a.cfg.Inhibitor, Clock: a.cfg.Clock, Log: a.log, Report: report, Kept: a.cfg.NodeShutdown, Save: a.cfg.SaveNodeShutdown,
		Needed: a.needed, Changed: a.nodeChanged, MayGoDown: a.nodeMayGoDown, Tick: nodeTick,
	})}
}

func (a *Agent) nodeShutdown(domain string) (now grace.NodeShutdownTime, turn grace.Mono) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node.time, a.node.turns[domain]
}

// turns returns when the VMs are asked; the caller holds the lock.
func (a *Agent) turns(n grace.NodeShutdownTime) map[string]grace.Mono {
	vms := map[string]grace.Summary{}
	for domain, k := range a.keepers {
		if s := k.summary.Load(); s.Running {
			vms[domain] = *s
		}
	}
	return n.Turns(vms)
}

// nextTurn starts the shutdown of the VMs with the lowest remaining priority. It returns
// whether any VM waits for that. The caller holds the lock.
func (a *Agent) nextTurn(now grace.Mono) (waiting bool) {
	lowest := int32(math.MaxInt32)
	for _, k := range a.keepers {
		if s := k.summary.Load(); s.Running {
			lowest = min(lowest, s.Priority)
		}
	}
	for domain, turn := range a.node.turns {
		k := a.keepers[domain]
		if turn <= now || k == nil {
			continue
		}
		if s := k.summary.Load(); s.Running && s.Priority == lowest {
			a.node.turns[domain], waiting = now, true
		}
	}
	return waiting
}

// Node returns what is known of the node's shutdown.
func (a *Agent) Node() NodeView { return a.node.keeper.View() }

// GoesDown reports whether the node shuts down.
func (a *Agent) GoesDown() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node.time.UnderWay()
}

func (a *Agent) needed() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	longest := time.Duration(0)
	for _, k := range a.keepers {
		if s := k.summary.Load(); s.Running {
			longest = max(longest, s.Needs)
		}
	}
	return longest
}

// awaitNode waits for the first report. The deadlines of the records are armed already.
func awaitNode(ctx context.Context, first <-chan struct{}) {
	late := time.NewTimer(nodeFirstTimeout)
	defer late.Stop()
	select {
	case <-first:
	case <-late.C:
	case <-ctx.Done():
	}
}

// nodeChanged tells the VMs.
func (a *Agent) nodeChanged(t grace.NodeShutdownTime, atOnce bool) {
	a.mu.Lock()
	switch n := &a.node; {
	case atOnce || !t.UnderWay() || n.time.Kept:
		n.turns = nil
	case !n.time.UnderWay():
		n.turns = a.turns(t)
	}
	a.node.time, a.node.goneAt = t, 0
	a.mu.Unlock()
	a.hintAll(func(h *hints) { h.node = true })
}

// nodeMayGoDown has the next VMs asked, and returns why the node may go down, "" if it may not.
func (a *Agent) nodeMayGoDown(_ grace.NodeShutdownTime, now grace.Mono) string {
	a.mu.Lock()
	next := a.nextTurn(now)
	because := a.gone(now)
	a.mu.Unlock()
	if next {
		a.hintAll(func(h *hints) { h.node = true })
	}
	return because
}

// gone returns which VMs are gone, "" while one is not. The caller holds the lock.
func (a *Agent) gone(now grace.Mono) string {
	m := &a.node
	alive, recorded := false, false
	for _, k := range a.keepers {
		s := k.summary.Load()
		recorded = recorded || s.Phase != ""
		alive = alive || s.Running
	}
	if alive || !a.listed || !a.read {
		m.goneAt = 0
	} else if m.goneAt == 0 {
		m.goneAt = now
	}
	switch {
	case m.goneAt == 0:
		return ""
	case !recorded:
		return "no VM is left"
	case now.Sub(m.goneAt) >= nodeReportTimeout:
		return "no VM runs any more"
	default:
		return ""
	}
}
