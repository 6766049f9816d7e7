package agent

import (
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Saves that may wait are what tenants can cause. All of a node's together cost the disk
// no more than this.
const (
	savePace  = 100 * time.Millisecond
	saveBurst = 10
)

// pace gives turns: a few at once, then one every savePace.
type pace struct {
	mu   sync.Mutex
	paid grace.Mono // until when turns are given
}

// turn gives the next one. It does not block.
func (p *pace) turn(now grace.Mono) grace.Mono {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paid = max(p.paid, now).Add(savePace)
	return max(now, p.paid.Add(-saveBurst*savePace))
}
