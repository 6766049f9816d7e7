package agent

import (
	"context"
	"fmt"
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
	// nodeSaveTimeout is how long the guests wait until the shutdown's end is durable.
	nodeSaveTimeout = 200 * time.Millisecond
	// nodeCheck is how often the agent checks whether the delay is long enough.
	nodeCheck = 30 * time.Second
	// nodeFirstTimeout is how long VMs wait at the agent's start for logind's first
	// report. While the node shuts down, the end of a launcher is no cause of its own.
	nodeFirstTimeout = 500 * time.Millisecond
)

// node is what the agent knows of the node's shutdown. The agent's lock guards it, except
// warned.
type node struct {
	time     grace.NodeShutdownTime
	state    NodeState
	heard    bool // of logind, at least once
	released bool // the inhibitor, for this shutdown
	// goneAt is since when no instance is left, 0 while there is one.
	goneAt grace.Mono
	// turns are when the VMs that were there at its begin are asked.
	turns  map[string]grace.Mono
	warned [2]time.Duration // the delay and need last warned of; keepNode's own
}

// NodeView is the delay as operators see it. Needed is the time for the longest grace
// period.
type NodeView struct {
	NodeState
	Needed time.Duration
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
func (a *Agent) Node() NodeView {
	a.mu.Lock()
	defer a.mu.Unlock()
	state := a.node.state
	state.Held = state.Held && !a.node.released
	return NodeView{state, a.needed()}
}

// GoesDown reports whether the node shuts down.
func (a *Agent) GoesDown() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node.time.UnderWay()
}

// needed is called under the lock.
func (a *Agent) needed() time.Duration {
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

// keepNode delays shutdowns of the node until no VM is left. reported is called
// after each report of logind's state.
func (a *Agent) keepNode(ctx context.Context, reported func()) {
	reports := make(chan NodeState)
	a.wg.Go(func() {
		a.cfg.Inhibitor.Watch(ctx, func(s NodeState) {
			select {
			case reports <- s:
			case <-ctx.Done():
			}
		})
	})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-reports:
			a.nodeReported(ctx, s)
			reported()
		case <-timer.C:
		}
		timer.Reset(a.checkNode(ctx))
	}
}

// nodeReported takes logind's report. A shutdown keeps its first end.
func (a *Agent) nodeReported(ctx context.Context, s NodeState) {
	a.mu.Lock()
	m, now := &a.node, a.cfg.Clock.Now()
	m.state, m.heard = s, true
	before := m.time
	switch {
	case !s.Known: // the last report stands
	case s.ShuttingDown && !before.UnderWay():
		m.time = grace.NodeShutdownTime{Begin: now, End: now.Add(s.Delay)}
		m.turns = a.turns(m.time)
		if s.AtOnce {
			m.turns = nil
		}
	case s.ShuttingDown && s.AtOnce && m.turns != nil:
		m.turns = nil
		defer a.hintAll(func(h *hints) { h.node = true })
	case !s.ShuttingDown:
		m.time, m.released, m.goneAt = grace.NodeShutdownTime{}, false, 0
	default:
	}
	after := m.time
	a.mu.Unlock()
	if after != before {
		a.nodeChanged(ctx, after)
	}
}

// nodeChanged saves the shutdown first: an agent that restarts during it must not give
// the VMs a new end.
func (a *Agent) nodeChanged(ctx context.Context, now grace.NodeShutdownTime) {
	if now.UnderWay() {
		a.log.Info("the node shuts down: every VM gets its grace period, as far as there is time", "timeLeft", now.End.Sub(now.Begin))
	} else {
		a.log.Info("the node's shutdown is called off: VMs that were asked finish, the others go on")
	}
	kept := make(chan error, 1)
	a.wg.Go(func() { kept <- a.cfg.SaveNodeShutdown(now) })
	select {
	case err := <-kept:
		if err != nil {
			a.log.Error("cannot keep the end of the node's shutdown: an agent that starts in the middle would not know it", "err", err)
		}
	case <-time.After(nodeSaveTimeout):
		a.log.Error("the disk does not answer: going on with the node's shutdown from memory")
	case <-ctx.Done():
	}
	a.hintAll(func(h *hints) { h.node = true })
}

// checkNode returns when to look again.
func (a *Agent) checkNode(ctx context.Context) time.Duration {
	a.mu.Lock()
	m, now := &a.node, a.cfg.Clock.Now()
	begin, end, needed := m.time.Begin, m.time.End, a.needed()
	underWay, because, next := m.time.UnderWay(), "", false
	// Logind has not come back, and the time for the shutdown is over.
	over := underWay && now >= end && m.heard && !m.state.Known
	switch {
	case over:
		m.time, m.released, m.goneAt = grace.NodeShutdownTime{}, false, 0
	case underWay && !m.released:
		next = a.nextTurn(now)
		because = a.mayGoDown(now)
		m.released = because != ""
	}
	state, released := m.state, m.released
	a.mu.Unlock()
	if next {
		a.hintAll(func(h *hints) { h.node = true })
	}
	switch { // nothing here has the lock: a log or the disk may hang
	case over:
		a.nodeChanged(ctx, grace.NodeShutdownTime{})
		return nodeCheck
	case !underWay:
		a.warnOfDelay(state, needed)
		return nodeCheck
	case because != "":
		a.cfg.Inhibitor.Release()
		a.log.Info("the node may go down", "because", because, "after", now.Sub(begin))
	case released:
		return max(nodeTick, min(nodeCheck, end.Sub(now)))
	}
	return nodeTick
}

// mayGoDown returns why the node may go down, "" if it may not. The caller holds the
// lock.
func (a *Agent) mayGoDown(now grace.Mono) string {
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
	case now >= m.time.End:
		return "the time is over"
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

// warnOfDelay warns once per value that the delay is too short. Only keepNode's goroutine
// calls it.
func (a *Agent) warnOfDelay(s NodeState, needed time.Duration) {
	now := [2]time.Duration{s.Delay, needed}
	if !s.Known || s.Delay >= needed || a.node.warned == now {
		return
	}
	a.node.warned = now
	a.log.Warn("a reboot of this node would cut grace periods short: set InhibitDelayMaxSec in logind.conf, or --node-shutdown-timeout, to what is needed",
		"delay", s.Delay, "needed", needed, "setBy", s.SetBy)
	if a.cfg.Cluster == nil {
		return
	}
	a.cfg.Cluster.Report(Event{
		OfNode: true, Reason: reasonDelay, Warning: true, Key: fmt.Sprint(now), At: a.cfg.Clock.Wall().UTC(),
		Message: s.TooShort(needed),
	})
}

// TooShort returns the message of an Event about a delay that is shorter than needed.
func (s NodeState) TooShort(needed time.Duration) string {
	text := fmt.Sprintf("a reboot of this node would cut the grace periods of its VMs short: logind delays it by %s at most, and they need %s; set InhibitDelayMaxSec in logind.conf or the agent's --node-shutdown-timeout",
		s.Delay, needed)
	if s.SetBy != "" {
		text += "; it is " + s.SetBy + " that sets it now"
	}
	return text
}
