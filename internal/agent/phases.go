package agent

import (
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Phase is that of a domain's record, "" without one.
func (a *Agent) Phase(domain string) grace.Phase {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.keepers[domain]
	if k == nil {
		return ""
	}
	phase, _ := k.phase.Load().(grace.Phase)
	return phase
}

// HeldFor is how long a domain's shutdown has been held, 0 while it is not.
func (a *Agent) HeldFor(domain string) time.Duration {
	a.mu.Lock()
	k := a.keepers[domain]
	a.mu.Unlock()
	if k == nil {
		return 0
	}
	if since := k.heldSince.Load(); since != 0 {
		return max(0, a.cfg.Clock.Now().Sub(grace.Mono(since)))
	}
	return 0
}

// Guarding reports whether a grace period is under way, or a shutdown is held.
func (a *Agent) Guarding() bool {
	n := a.Phases()
	return n[grace.Held]+n[grace.ShuttingDown]+n[grace.Destroying] > 0
}

// Phases counts the recorded VMs by phase.
func (a *Agent) Phases() map[grace.Phase]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := map[grace.Phase]int{grace.Running: 0, grace.Held: 0, grace.ShuttingDown: 0, grace.Destroying: 0}
	for _, k := range a.keepers {
		if phase, ok := k.phase.Load().(grace.Phase); ok && phase != "" {
			count[phase]++
		}
	}
	return count
}
