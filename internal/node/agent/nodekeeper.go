package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// nodeSaveTimeout is how long the guests wait until the shutdown's end is durable.
	nodeSaveTimeout = 200 * time.Millisecond
	// nodeCheck is how often the keeper checks whether the delay is long enough.
	nodeCheck = 30 * time.Second
	// nodeHangs is how long after its end a shutdown that goes on counts as hung. Once the
	// inhibitor is let go, VMs are looked at each nodeAfter.
	nodeHangs   = time.Minute
	nodeAfter   = time.Second
	reasonDelay = "ShutdownDelayTooShort"
	reasonHangs = "ShutdownHangs"
)

// NodeConfig configures a NodeKeeper. All fields but Kept are required.
type NodeConfig struct {
	Inhibitor Inhibitor
	Clock     Clock
	Log       *slog.Logger
	Report    func(Event)
	// Kept is a shutdown that an earlier agent of this boot has heard of. Save makes one
	// durable, or forgets it. It may block, and the keeper waits only briefly.
	Kept grace.NodeShutdownTime
	Save func(grace.NodeShutdownTime) error
	// Needed is how long a shutdown has to be delayed for the longest grace period.
	Needed func() time.Duration
	// Changed is called when a shutdown begins, is called off, or no longer waits.
	Changed func(t grace.NodeShutdownTime, atOnce bool)
	// MayGoDown does what is due for the VMs, and returns why the node may go down, "" if it may
	// not. It is called each Tick while the node shuts down.
	MayGoDown func(t grace.NodeShutdownTime, now grace.Mono) (because string)
	Tick      time.Duration
}

// NodeKeeper delays shutdowns of the node until its VMs are gone. Only Run changes its fields.
type NodeKeeper struct {
	cfg    NodeConfig
	time   grace.NodeShutdownTime
	hung   bool             // it was said of this shutdown
	warned [2]time.Duration // the delay and need last warned of

	mu       sync.Mutex // guards what View reads
	state    NodeState
	released bool // the inhibitor, for this shutdown
}

// NodeView is the delay as operators see it. Needed is the time for the longest grace
// period.
type NodeView struct {
	NodeState
	Needed time.Duration
}

// NewNodeKeeper returns a NodeKeeper that does nothing before Run.
func NewNodeKeeper(cfg NodeConfig) *NodeKeeper { return &NodeKeeper{cfg: cfg, time: cfg.Kept} }

// View returns what is known of the node's shutdown. Any goroutine may call it.
func (n *NodeKeeper) View() NodeView {
	n.mu.Lock()
	view := NodeView{NodeState: n.state}
	view.Held = view.Held && !n.released
	n.mu.Unlock()
	view.Needed = n.cfg.Needed()
	return view
}

// Run delays shutdowns until ctx ends. reported is called after each report of logind's state.
func (n *NodeKeeper) Run(ctx context.Context, reported func()) {
	reports, ended := make(chan NodeState), make(chan struct{})
	go func() {
		defer close(ended)
		n.cfg.Inhibitor.Watch(ctx, func(s NodeState) {
			select {
			case reports <- s:
			case <-ctx.Done():
			}
		})
	}()
	defer func() { <-ended }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-reports:
			n.reported(ctx, s)
			reported()
		case <-timer.C:
		}
		timer.Reset(n.check(ctx))
	}
}

func (n *NodeKeeper) reported(ctx context.Context, s NodeState) {
	n.mu.Lock()
	was := n.state
	n.state = s
	n.mu.Unlock()
	if !s.Known {
		return // the last report stands
	}
	if to := n.time.Told(s.ShuttingDown, s.Delay, n.cfg.Clock.Now()); to != n.time {
		n.change(ctx, to)
	} else if s.ShuttingDown && s.AtOnce && !was.AtOnce {
		n.cfg.Changed(n.time, true)
	}
}

// change saves the shutdown first: an agent that restarts during it must not give the VMs a new
// end.
func (n *NodeKeeper) change(ctx context.Context, to grace.NodeShutdownTime) {
	n.mu.Lock()
	n.time, n.hung, n.released = to, false, false
	atOnce := n.state.AtOnce
	n.mu.Unlock()
	if to.UnderWay() {
		n.cfg.Log.Info("the node shuts down: every VM gets its grace period, as far as there is time", "timeLeft", to.End.Sub(n.cfg.Clock.Now()))
	} else {
		n.cfg.Log.Info("the node's shutdown is called off: VMs that were asked finish, the others go on")
	}
	kept := make(chan error, 1)
	go func() { kept <- n.cfg.Save(to) }() // a disk that hangs delays nothing
	select {
	case err := <-kept:
		if err != nil {
			n.cfg.Log.Error("cannot keep the end of the node's shutdown: an agent that starts in the middle would not know it", "err", err)
		}
	case <-time.After(nodeSaveTimeout):
		n.cfg.Log.Error("the disk does not answer: going on with the node's shutdown from memory")
	case <-ctx.Done():
	}
	n.cfg.Changed(to, atOnce)
}

// check does what is due, and returns when to check again.
func (n *NodeKeeper) check(ctx context.Context) time.Duration {
	now := n.cfg.Clock.Now()
	if n.time.Lapsed(n.state.Known, now) {
		n.change(ctx, grace.NodeShutdownTime{})
	}
	left := n.time.End.Sub(now)
	switch {
	case n.time.Kept:
		return min(nodeCheck, left)
	case !n.time.UnderWay():
		n.warnOfDelay()
		return nodeCheck
	}
	because := n.cfg.MayGoDown(n.time, now)
	if left <= 0 {
		because = "the time is over"
	}
	if because != "" && !n.released {
		n.mu.Lock()
		n.released = true
		n.mu.Unlock()
		n.cfg.Inhibitor.Release()
		n.cfg.Log.Info("the node may go down", "because", because, "after", now.Sub(n.time.Begin))
	}
	if left <= -nodeHangs && !n.hung {
		n.hung = true
		n.warn(reasonHangs, fmt.Sprint(n.time.Begin), fmt.Sprintf("this node's shutdown has not ended %s after the end of its time: VMs that are started here are shut down at once; cordon the node, and see what it waits for (systemctl list-jobs)", nodeHangs))
	}
	if n.released {
		return nodeAfter
	}
	return n.cfg.Tick
}

// warnOfDelay warns once per value that the delay is too short.
func (n *NodeKeeper) warnOfDelay() {
	s, needed := n.state, n.cfg.Needed()
	now := [2]time.Duration{s.Delay, needed}
	if !s.Known || s.Lengthening || s.Delay >= needed || n.warned == now {
		return
	}
	n.warned = now
	n.warn(reasonDelay, fmt.Sprint(now), s.tooShort(needed))
}

func (n *NodeKeeper) warn(reason, key, message string) {
	n.cfg.Log.Warn("the guests of this node may lose their grace periods", "reason", reason, "message", message)
	n.cfg.Report(Event{OfNode: true, Reason: reason, Warning: true, Key: key, At: n.cfg.Clock.Wall().UTC(), Message: message})
}

// tooShort returns the message of an Event about a delay that is shorter than needed.
func (s NodeState) tooShort(needed time.Duration) string {
	text := fmt.Sprintf("a reboot of this node would cut grace periods short: logind delays it by %s at most, and they need %s; set InhibitDelayMaxSec in logind.conf or the agent's --node-shutdown-timeout",
		s.Delay, needed)
	if s.SetBy != "" {
		text += "; it is " + s.SetBy + " that sets it now"
	}
	return text
}
