package agent

import (
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Tenants can cause saves that may wait. These limits bound their cost for all VMs of a
// node together.
const (
	savePace  = 100 * time.Millisecond
	saveBurst = 10
)

// pace assigns turns: a few at once, then one every savePace.
type pace struct {
	mu   sync.Mutex
	paid grace.Mono // until when turns are given
}

// turn assigns the next turn. It does not block.
func (p *pace) turn(now grace.Mono) grace.Mono {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paid = max(p.paid, now).Add(savePace)
	return max(now, p.paid.Add(-saveBurst*savePace))
}
