// Package reboot passes a shutdown of the node on to KubeVirt's launchers, which would learn
// of it only when kubelet, or systemd, ends them. It delays the shutdown until their guests are
// off.
//
// The first process of the container in which QEMU runs gets SIGTERM, once. virt-launcher then
// has virt-handler ask the guest and keep its grace period. Nothing is ever killed here.
package reboot

import (
	"time"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// tick is how often the launchers are looked at while the node shuts down.
	tick = 100 * time.Millisecond
	// margin is what a VM needs beyond its grace period: virt-handler checks once a second, and
	// QEMU has to end.
	margin = 5 * time.Second
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

// Config configures a Shutdown. All fields are required, and of Node what NewNodeKeeper needs of a
// caller that is no agent.
type Config struct {
	agent.NodeConfig

	Node Node
	// Launchers returns the launcher pods of the node; known is false until they are listed.
	Launchers func() (all []hold.Launcher, known bool)
	// Longest returns the longest grace period of the node's VMs.
	Longest func() time.Duration
	// Begun is called when a shutdown begins and when it is called off.
	Begun func(underWay bool)
}

// Shutdown is the node's shutdown. Only Run uses its fields.
type Shutdown struct {
	*agent.NodeKeeper

	cfg        Config
	terminated map[Process]bool // got SIGTERM
	failed     string           // last logged
}

// New returns a Shutdown that does nothing before Run.
func New(cfg Config) *Shutdown {
	s := &Shutdown{cfg: cfg, terminated: map[Process]bool{}}
	cfg.Needed, cfg.Changed, cfg.MayGoDown, cfg.Tick = s.needed, s.changed, s.mayGoDown, tick
	s.NodeKeeper = agent.NewNodeKeeper(cfg.NodeConfig)
	return s
}

// needed is how long a shutdown has to be delayed for the longest grace period, 0 without VMs.
func (s *Shutdown) needed() time.Duration {
	if longest := s.cfg.Longest(); longest > 0 {
		return longest + margin
	}
	return 0
}

func (s *Shutdown) changed(t grace.NodeShutdownTime, _ bool) {
	clear(s.terminated)
	s.cfg.Begun(t.UnderWay())
}

// mayGoDown tells the launchers, and returns why the node may go down, "" if it may not.
func (s *Shutdown) mayGoDown(t grace.NodeShutdownTime, now grace.Mono) string {
	if running, known := s.tell(now.Sub(t.Begin)); known && running == 0 {
		return "no VM that ran when it was announced is left"
	}
	return ""
}

// tell has every launcher that was not told yet get SIGTERM, and returns how many of the QEMUs
// run that ran at the begin, so long ago. known is false while not all can be seen.
func (s *Shutdown) tell(since time.Duration) (running int, known bool) {
	launchers, known := s.cfg.Launchers()
	found, err := s.cfg.Node.Find(launchers)
	if err != nil {
		s.fail("the launchers' processes cannot be seen; trying again", err)
		return 0, false
	}
	for i := range launchers {
		is := found[launchers[i].UID]
		for _, q := range is.QEMUs {
			if s.cfg.Node.Age(q) >= since {
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
