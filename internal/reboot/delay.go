package reboot

import (
	"fmt"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/internal/agent"
)

// view is the state that operators see, from any goroutine.
type view struct {
	mu sync.Mutex
	is agent.NodeState
}

func (v *view) set(s *Shutdown) {
	is := s.state
	is.Held = is.Held && !s.released
	v.mu.Lock()
	defer v.mu.Unlock()
	v.is = is
}

// View returns what is known of the node's shutdown. Any goroutine may call it.
func (s *Shutdown) View() agent.NodeView {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	return agent.NodeView{NodeState: s.view.is, Needed: s.needed()}
}

// needed is how long a shutdown has to be delayed for the longest grace period, 0 without VMs.
func (s *Shutdown) needed() time.Duration {
	if longest := s.cfg.Longest(); longest > 0 {
		return longest + margin
	}
	return 0
}

// warnOfDelay warns once per value that the delay is too short.
func (s *Shutdown) warnOfDelay() {
	needed := s.needed()
	now := [2]time.Duration{s.state.Delay, needed}
	if !s.state.Known || s.state.Delay >= needed || s.warned == now {
		return
	}
	s.warned = now
	s.cfg.Log.Warn("a reboot of this node would cut grace periods short: set InhibitDelayMaxSec in logind.conf, or --node-shutdown-timeout, to what is needed",
		"delay", s.state.Delay, "needed", needed, "setBy", s.state.SetBy)
	s.report("ShutdownDelayTooShort", fmt.Sprint(now), s.state.TooShort(needed))
}

func (s *Shutdown) report(reason, key, message string) {
	s.cfg.Report(agent.Event{OfNode: true, Reason: reason, Warning: true, Key: key, Message: message, At: s.cfg.Clock.Wall().UTC()})
}
