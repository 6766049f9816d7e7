// Package reboot passes a shutdown of the node on to KubeVirt's launchers, which would learn
// of it only when kubelet, or systemd, ends them. It delays the shutdown until their guests are
// off.
//
// The first process of the container in which QEMU runs gets SIGTERM, once. virt-launcher then
// has virt-handler ask the guest and keep its grace period. Nothing is ever killed here.
package reboot

import (
	"context"
	"log/slog"
	"time"

	"github.com/vmgrace/vmgrace/internal/agent"
	"github.com/vmgrace/vmgrace/internal/hold"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// tick is how often the launchers are looked at while the node shuts down.
	tick = 100 * time.Millisecond
	// checkInterval is how often the delay is checked otherwise.
	checkInterval = 30 * time.Second
	// margin is what a VM needs beyond its grace period: virt-handler checks once a second, and
	// QEMU has to end.
	margin      = 5 * time.Second
	saveTimeout = 200 * time.Millisecond
)

// Process is a process that cannot be mistaken for another: Start is its start time.
type Process struct {
	PID   int
	Start uint64
}

// Processes are those of a launcher.
type Processes struct {
	// First is PID 1 of the container that QEMU runs in, zero while it is not known.
	First Process
	QEMUs []Process
}

// Node is the node that shuts down.
type Node interface {
	// Find finds the processes of launchers, by pod UID.
	Find(launchers []hold.Launcher) (map[string]Processes, error)
	// Terminate sends SIGTERM to this process, or to none.
	Terminate(Process) error
	// Age is for how long the process has run.
	Age(Process) time.Duration
}

// Config configures a Shutdown. All fields are required.
type Config struct {
	Inhibitor agent.Inhibitor
	Node      Node
	// Launchers returns the launcher pods of the node; known is false until they are listed.
	Launchers func() (all []hold.Launcher, known bool)
	// Longest returns the longest grace period of the node's VMs.
	Longest func() time.Duration
	Clock   hold.Clock
	Report  func(agent.Event)
	// Changed is called when a shutdown begins and when it is called off.
	Changed func(underWay bool)
	// Begun is a shutdown that an earlier agent of this boot has heard of. Save makes one durable,
	// or forgets it.
	Begun grace.NodeShutdownTime
	Save  func(grace.NodeShutdownTime) error
	Log   *slog.Logger
}

// Shutdown is the node's shutdown. Only Run uses its fields, except for view.
type Shutdown struct {
	cfg   Config
	time  grace.NodeShutdownTime
	state agent.NodeState
	heard bool // of logind
	// released means that the inhibitor was let go for this shutdown. terminated has the
	// processes that got SIGTERM.
	released   bool
	terminated map[Process]bool
	warned     [2]time.Duration // the delay and need last warned of
	failed     string           // last logged
	view       view
}

// New returns a Shutdown that does nothing before Run.
func New(cfg Config) *Shutdown {
	return &Shutdown{cfg: cfg, time: cfg.Begun, terminated: map[Process]bool{}}
}

// Run delays shutdowns until ctx ends.
func (s *Shutdown) Run(ctx context.Context) error {
	reports := make(chan agent.NodeState)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.cfg.Inhibitor.Watch(ctx, func(state agent.NodeState) {
			select {
			case reports <- state:
			case <-ctx.Done():
			}
		})
	}()
	defer func() { <-ended }()
	if s.time.UnderWay() {
		s.cfg.Changed(true)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case state := <-reports:
			s.reported(ctx, state)
		case <-timer.C:
		}
		timer.Reset(s.check(ctx))
	}
}

// reported takes logind's report. A shutdown keeps its first end.
func (s *Shutdown) reported(ctx context.Context, state agent.NodeState) {
	s.state, s.heard = state, true
	now := s.cfg.Clock.Now()
	switch {
	case !state.Known: // the last report stands
	case state.ShuttingDown && !s.time.UnderWay():
		s.cfg.Log.Info("the node shuts down: every launcher is told", "timeLeft", state.Delay)
		s.set(ctx, grace.NodeShutdownTime{Begin: now, End: now.Add(state.Delay)})
	case !state.ShuttingDown && s.time.UnderWay():
		s.cfg.Log.Info("the node's shutdown is called off: guests that were asked finish")
		s.set(ctx, grace.NodeShutdownTime{})
	}
	s.view.set(s)
}

// set begins or forgets a shutdown. A disk that hangs delays nothing.
func (s *Shutdown) set(ctx context.Context, to grace.NodeShutdownTime) {
	s.time, s.released = to, false
	clear(s.terminated)
	s.cfg.Changed(to.UnderWay())
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := durable.Within(ctx, "the disk", func() error { return s.cfg.Save(to) }); err != nil {
		s.cfg.Log.Error("cannot keep the end of the node's shutdown: an agent that starts in the middle would not know it", "err", err)
	}
}

// check does what is due, and returns when to check again.
func (s *Shutdown) check(ctx context.Context) time.Duration {
	defer s.view.set(s)
	now := s.cfg.Clock.Now()
	switch {
	case !s.time.UnderWay():
		s.warnOfDelay()
		return checkInterval
	case now >= s.time.End && s.heard && !s.state.Known: // logind has not come back
		s.set(ctx, grace.NodeShutdownTime{})
		return checkInterval
	}
	because := ""
	if running, known := s.tell(now); known && running == 0 {
		because = "no VM that ran when it was announced is left"
	}
	if now >= s.time.End {
		because = "the time is over"
	}
	if because != "" && !s.released {
		s.released = true
		s.cfg.Inhibitor.Release()
		s.cfg.Log.Info("the node may go down", "because", because, "after", now.Sub(s.time.Begin))
	}
	return tick
}

// tell has every launcher that was not told yet get SIGTERM, and returns how many of the QEMUs
// run that ran at the begin. known is false while not all can be seen.
func (s *Shutdown) tell(now grace.Mono) (running int, known bool) {
	launchers, known := s.cfg.Launchers()
	found, err := s.cfg.Node.Find(launchers)
	if err != nil {
		s.fail("the launchers' processes cannot be seen; trying again", err)
		return 0, false
	}
	for i := range launchers {
		is := found[launchers[i].UID]
		for _, q := range is.QEMUs {
			if s.cfg.Node.Age(q) >= now.Sub(s.time.Begin) {
				running++
			}
		}
		if is.First == (Process{}) || s.terminated[is.First] {
			continue
		}
		if err := s.cfg.Node.Terminate(is.First); err != nil {
			s.fail("a launcher cannot be told that the node shuts down; trying again", err)
			continue
		}
		s.terminated[is.First] = true
		s.cfg.Log.Info("a launcher is told that the node shuts down", "namespace", launchers[i].Namespace, "name", launchers[i].VM, "pid", is.First.PID)
	}
	return running, known
}

// fail logs an error once.
func (s *Shutdown) fail(what string, err error) {
	if text := what + err.Error(); text != s.failed {
		s.failed = text
		s.cfg.Log.Error(what, "err", err) //nolint:sloglint // one of two
	}
}
