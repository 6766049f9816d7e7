package agent

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// listEvery bounds how often a list is made on request: VMIs that change all the time
// must not keep libvirt busy.
const listEvery = 200 * time.Millisecond

// listSoon asks for a list; requests until then share one. It does not block.
func (a *Agent) listSoon() {
	select {
	case a.relist <- struct{}{}:
	default:
	}
}

// list asks the hypervisor for everything, because events get lost. It does not change
// asked after the call to List: a call that hangs may use the filter after List has
// returned.
func (a *Agent) list(ctx context.Context) error {
	a.mu.Lock()
	asked := maps.Clone(a.keepers)
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	domains, err := a.cfg.Hypervisor.List(ctx, func(name string) bool { return asked[name] != nil || a.expected(name) })
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listed = true
	if err != nil {
		return fmt.Errorf("list domains: %w", err)
	}
	now, found := a.cfg.Clock.Now(), make(map[string]bool, len(domains))
	for _, d := range domains {
		found[d.Name] = true
		switch k := a.keepers[d.Name]; {
		case k == nil && a.expected(d.Name):
			a.keeper(d.Name) // and its own first look
		case k != nil && k == asked[d.Name]:
			k.box.put(now, func(h *hints) { h.seen = &d })
		}
	}
	for name, k := range asked {
		// A list without the domain proves nothing: its keeper asks for it.
		if !found[name] && k == a.keepers[name] {
			k.box.put(now, func(h *hints) { h.seen = &hypervisor.Domain{} })
		}
	}
	return nil
}
