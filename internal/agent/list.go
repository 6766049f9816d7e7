package agent

import (
	"context"
	"maps"
	"time"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// listEvery bounds how often a list is made that somebody asks for: whoever
// changes VMIs all the time must not keep libvirt busy.
const listEvery = 200 * time.Millisecond

// listSoon asks for a list, once for all who ask until then. It does not block.
func (a *Agent) listSoon() {
	select {
	case a.relist <- struct{}{}:
	default:
	}
}

// list asks the hypervisor for everything, because events get lost. It returns
// whether there was anything new, or nothing could be learned.
func (a *Agent) list(ctx context.Context) (news bool) {
	a.mu.Lock()
	asked := maps.Clone(a.keepers)
	a.mu.Unlock()
	ctx, cancel := bounded(ctx, lookTimeout)
	defer cancel()
	domains, err := a.cfg.Hypervisor.List(ctx, func(name string) bool { return asked[name] != nil || a.expected(name) })
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listed = true
	if err != nil {
		a.log.Debug("cannot list domains", "err", err)
		return true
	}
	now := a.cfg.Clock.Now()
	for i := range domains {
		name := domains[i].Name
		switch k := a.keepers[name]; {
		case k == nil && a.expected(name):
			a.keeper(name) // and its own first look
			news = true
		case k != nil && k == asked[name]:
			news = k.box.list(now, &domains[i]) || news
		}
		delete(asked, name)
	}
	for name, k := range asked {
		// A list that leaves a domain out is no proof: its keeper asks for it.
		if k == a.keepers[name] {
			news = k.box.list(now, &hypervisor.Domain{}) || news
		}
	}
	return news
}
