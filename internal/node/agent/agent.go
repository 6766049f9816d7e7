package agent

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// stuck is how old a pending hint may get before the agent counts as stuck. A keeper only
// ever waits for the next hint.
const stuck = 30 * time.Second

// Agent gives the VMs of one node their grace periods.
type Agent struct {
	cfg    Config
	log    *slog.Logger
	relist chan struct{}
	saves  pace

	mu       sync.Mutex
	keepers  map[string]*keeper // by domain
	rejected map[string]bool    // names that were rejected, to say it once
	ctx      context.Context    //nolint:containedctx // the keepers' life, set once by Run
	wg       sync.WaitGroup
	listed   bool
	read     bool // the records, so that none comes later
	started  grace.Mono
	node     node
}

// New returns an agent that does nothing yet.
func New(cfg Config, log *slog.Logger) *Agent {
	a := &Agent{cfg: cfg, log: log, keepers: map[string]*keeper{}, rejected: map[string]bool{}, relist: make(chan struct{}, 1)}
	if cfg.Inhibitor != nil {
		a.delaysShutdowns()
	}
	return a
}

// Guard takes over records that were read, and arms their deadlines, soonest first. After
// Run has begun it also guards them at once. Call it once the records are read, even if
// there are none: until then the agent remembers which instances have ended. It does not
// block.
func (a *Agent) Guard(records []grace.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = true
	for _, k := range a.keepers {
		k.box.put(a.cfg.Clock.Now(), func(*hints) {}) // it need not stay any more
	}
	armed := 0
	slices.SortFunc(records, func(x, y grace.Record) int { return cmp.Compare(x.Shutdown.Deadline, y.Shutdown.Deadline) })
	for _, r := range records {
		if k := a.keepers[r.Domain()]; k != nil {
			k.box.put(a.cfg.Clock.Now(), func(h *hints) { h.record = &r })
			continue
		}
		k := a.keep(r.Domain(), r)
		k.restore()
		if k.armed != nil {
			armed++
		}
		if a.ctx != nil {
			a.start(k)
		}
	}
	if armed > 0 {
		a.log.Info("every deadline of the records is armed", "shutdowns", armed)
	}
}

// Run guards the records and every VM that it hears of, until ctx ends. It leaves every
// VM alone when it ends.
func (a *Agent) Run(ctx context.Context) error {
	if a.node.keeper != nil {
		first := make(chan struct{})
		a.wg.Go(func() { a.node.keeper.Run(ctx, sync.OnceFunc(func() { close(first) })) })
		awaitNode(ctx, first)
	}
	a.mu.Lock()
	a.ctx, a.started = ctx, a.cfg.Clock.Now()
	for _, k := range a.keepers {
		a.start(k)
	}
	a.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last grace.Mono // when the last list was begun
	for {
		select {
		case <-ctx.Done():
			a.wg.Wait()
			return nil
		case <-timer.C:
		case <-a.relist:
			if early := last.Add(listEvery).Sub(a.cfg.Clock.Now()); early > 0 {
				timer.Reset(early)
				continue
			}
		}
		last = a.cfg.Clock.Now()
		timer.Reset(relist)
		if err := a.list(ctx); err != nil {
			a.log.Debug("cannot list domains; retrying", "err", err)
			timer.Reset(relistFailed)
		}
	}
}

// LauncherChanged says that the launcher directory of this name may have changed. It does
// not block.
func (a *Agent) LauncherChanged(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.keeper(name); k != nil {
		k.box.put(a.cfg.Clock.Now(), func(h *hints) { h.launcher = true })
	}
}

// ClusterChanged says that what the API server shows of a VMI or its launcher pods may
// have changed; empty names mean all. It does not block.
func (a *Agent) ClusterChanged(namespace, name string) {
	if name == "" {
		a.hintAll(func(h *hints) { h.cluster = true })
		return
	}
	domain := grace.DomainName(namespace, name)
	pods := len(a.cfg.Cluster.Pods(namespace, name)) > 0
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.keepers[domain]
	switch {
	case k == nil && pods:
		k = a.keeper(domain)
	case k == nil && a.expected(domain) && a.validName(domain):
		a.listSoon() // its domain may be there already
	}
	if k != nil {
		k.box.put(a.cfg.Clock.Now(), func(h *hints) { h.cluster = true })
	}
}

// expected reports whether there is a VMI for this domain. It needs no keeper until the
// domain or a launcher appears.
func (a *Agent) expected(domain string) bool {
	namespace, name, ok := grace.SplitDomainName(domain)
	if !ok || a.cfg.Cluster == nil {
		return false
	}
	return a.cfg.Cluster.VMI(namespace, name).UID != ""
}

// DomainChanged takes a hypervisor's event. It does not block. It ignores domains that
// are not ours.
func (a *Agent) DomainChanged(ev hypervisor.Event) {
	if ev.Name == "" {
		a.listSoon()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.keepers[ev.Name]
	if k == nil && a.expected(ev.Name) {
		k = a.keeper(ev.Name)
	}
	if k == nil {
		return
	}
	k.box.put(a.cfg.Clock.Now(), func(h *hints) {
		switch {
		case ev.End == grace.EndUnknown:
			h.domain = true
		case h.end == grace.EndUnknown, ev.End.GoesOn() && h.endOf == ev.UUID:
			h.end, h.endOf = ev.End, ev.UUID
		case h.endOf != ev.UUID:
			h.domain = true
		}
	})
}

// keeper returns the keeper for this domain, and makes a missing one. It returns nil if
// no VM can have that name. The caller holds the lock.
func (a *Agent) keeper(domain string) *keeper {
	if k := a.keepers[domain]; k != nil {
		return k
	}
	if !a.validName(domain) {
		return nil
	}
	k := a.keep(domain, grace.Record{})
	if a.ctx != nil {
		a.start(k)
	}
	return k
}

// keep makes a keeper; the caller holds the lock.
func (a *Agent) keep(domain string, r grace.Record) *keeper {
	k := newKeeper(a, domain, r)
	k.vm.SeeNode(a.node.time, a.node.turns[domain])
	a.keepers[domain] = k
	return k
}

// start starts a keeper; the caller holds the lock.
func (a *Agent) start(k *keeper) {
	k.vm.SeeNode(a.node.time, a.node.turns[k.domain]) // it may have changed since
	a.wg.Go(func() { k.run(a.ctx) })
}

// retire forgets an idle keeper, unless there is news for it or its VM's record may still
// be read.
func (a *Agent) retire(k *keeper) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, news := k.box.waiting(); news || !a.read && k.vm.HadInstance() {
		return false
	}
	delete(a.keepers, k.domain)
	return true
}

// Ready reports whether libvirt was tried once, the records are guarded and none of them
// waits for a disk that refuses it or does not answer.
func (a *Agent) Ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keepers {
		if k.summary.Load().Unwritable {
			return false
		}
	}
	return a.listed
}

// SaveAgain saves all records again after the cache has lost them. It does not block.
func (a *Agent) SaveAgain() { a.hintAll(func(h *hints) { h.save = true }) }

func (a *Agent) hintAll(change func(*hints)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keepers {
		k.box.put(a.cfg.Clock.Now(), change)
	}
}

// Alive reports whether every keeper still takes its hints.
func (a *Agent) Alive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keepers {
		if since, news := k.box.waiting(); news && a.cfg.Clock.Now().Sub(since) > stuck {
			return false
		}
	}
	return true
}
