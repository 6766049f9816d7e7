package agent

import (
	"sync"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// hints holds what happened to a VM since its keeper last asked. Hints of one kind merge:
// a storm of them costs one look.
type hints struct {
	launcher bool
	domain   bool
	cluster  bool
	save     bool
	node     bool               // the node shuts down, or does not any more
	record   *grace.Record      // read from the cache late
	seen     *hypervisor.Domain // from a list, newer than any look before; zero: not in the list
	end      grace.End
	endOf    string     // UUID
	since    grace.Mono // when the oldest of them arrived
}

func (h *hints) empty() bool {
	return !h.launcher && !h.domain && !h.cluster && !h.save && !h.node && h.record == nil && h.seen == nil && h.end == ""
}

// mailbox holds hints until the keeper takes them. Any goroutine may put, and never waits
// for the keeper.
type mailbox struct {
	mu    sync.Mutex
	hints hints
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

func (m *mailbox) take() hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.hints
	m.hints = hints{}
	return h
}

// waiting returns since when a hint is pending, if one is.
func (m *mailbox) waiting() (grace.Mono, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints.since, !m.hints.empty()
}
