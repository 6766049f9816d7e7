package agent

import (
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Summary returns a domain's summary, zero without a keeper.
func (a *Agent) Summary(domain string) grace.Summary {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.keepers[domain]; k != nil {
		return *k.summary.Load()
	}
	return grace.Summary{}
}

// Phase returns the phase of a domain's record, "" without one.
func (a *Agent) Phase(domain string) grace.Phase { return a.Summary(domain).Phase }

// HeldFor returns how long a domain's shutdown has been held, 0 while it is not.
func (a *Agent) HeldFor(domain string) time.Duration {
	since := a.Summary(domain).HeldSince
	if since == 0 {
		return 0
	}
	return max(0, a.cfg.Clock.Now().Sub(since))
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
		if phase := k.summary.Load().Phase; phase != "" {
			count[phase]++
		}
	}
	return count
}
