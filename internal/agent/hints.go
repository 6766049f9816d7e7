package agent

import (
	"sync"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// hints is what happened to a VM since its keeper last asked. Hints of one
// kind merge: a storm of them costs one look.
type hints struct {
	launcher bool
	domain   bool
	cluster  bool
	save     bool
	record   *grace.Record      // read from the cache late
	seen     *hypervisor.Domain // what a list said, newer than any look before; zero: it is not on it
	end      grace.End
	endOf    string     // UUID
	since    grace.Mono // when the oldest of them arrived
}

func (h *hints) empty() bool {
	return !h.launcher && !h.domain && !h.cluster && !h.save && h.record == nil && h.seen == nil && h.end == ""
}

// mailbox holds hints until the keeper takes them. Anybody may put, without
// ever waiting for the keeper.
type mailbox struct {
	mu    sync.Mutex
	hints hints
	known *hypervisor.Domain // what a list need not tell; see knows
	ready chan struct{}
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

func (m *mailbox) put(now grace.Mono, change func(*hints)) {
	m.mu.Lock()
	if m.hints.empty() {
		m.hints.since = now
	}
	change(&m.hints)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// list puts what a list says of the domain, unless that is known. It returns
// whether it did.
func (m *mailbox) list(now grace.Mono, d *hypervisor.Domain) bool {
	m.mu.Lock()
	known := m.known != nil && *m.known == *d && m.hints.empty()
	m.mu.Unlock()
	if known {
		return false
	}
	seen := *d // not the whole list for as long as it is known
	m.put(now, func(h *hints) { h.seen = &seen })
	return true
}

// knows is called by a keeper that would do nothing if a list said d again; nil
// is what it has to be told whatever a list says.
func (m *mailbox) knows(d *hypervisor.Domain) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = d
}

func (m *mailbox) take() hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.hints
	m.hints = hints{}
	return h
}

// waiting tells since when a hint has not been taken, if there is one.
func (m *mailbox) waiting() (grace.Mono, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints.since, !m.hints.empty()
}
