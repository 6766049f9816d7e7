package agent

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// stuck is how long a keeper may leave a hint untaken before the agent counts
// as stuck. A keeper never waits for anything but the next hint.
const stuck = 30 * time.Second

// Agent keeps the VMs of one node to their grace periods.
type Agent struct {
	cfg    Config
	log    *slog.Logger
	relist chan struct{}

	mu      sync.Mutex
	keepers map[string]*keeper // by domain
	strange map[string]bool    // names that were rejected, to say it once
	ctx     context.Context    //nolint:containedctx // the keepers' life, set once by Run
	wg      sync.WaitGroup
	listed  bool
	started grace.Mono
}

// New returns an agent that knows the records already, and does nothing yet.
func New(cfg Config, log *slog.Logger) *Agent {
	return &Agent{cfg: cfg, log: log, keepers: map[string]*keeper{}, strange: map[string]bool{}, relist: make(chan struct{}, 1)}
}

// Run guards the records and whatever LauncherChanged brings, until ctx ends.
// It leaves every VM alone when it ends.
func (a *Agent) Run(ctx context.Context, records []grace.Record) error {
	a.mu.Lock()
	a.ctx, a.started = ctx, a.cfg.Clock.Now()
	for _, r := range records {
		a.keep(r.Domain(), r)
	}
	a.startAll()
	a.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			a.wg.Wait()
			return nil
		case <-timer.C:
		case <-a.relist:
		}
		if a.list(ctx) {
			timer.Reset(relist)
		} else {
			timer.Reset(relistCalm)
		}
	}
}

// LauncherChanged is called with the name of a launcher directory that may
// have changed. It does not block.
func (a *Agent) LauncherChanged(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.keepers[name]
	if k == nil {
		if problem := badName(name); problem != "" {
			a.reject(name, problem)
			return
		}
		k = a.keep(name, grace.Record{})
		if a.ctx != nil {
			a.start(k)
		}
	}
	k.box.put(a.cfg.Clock.Now(), func(h *hints) { h.launcher = true })
}

// ClusterChanged is called when what the API server says of a VMI or its
// launcher pods may have changed, with empty names for all. It does not block.
func (a *Agent) ClusterChanged(namespace, name string) {
	if name == "" {
		a.hintAll(func(h *hints) { h.cluster = true })
		return
	}
	domain := grace.DomainName(namespace, name)
	_, there := a.cfg.Cluster.VMI(namespace, name)
	there = there || len(a.cfg.Cluster.Pods(namespace, name)) > 0
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.keepers[domain]
	if k == nil {
		if !there {
			return
		}
		if problem := badName(domain); problem != "" {
			a.reject(domain, problem)
			return
		}
		k = a.keep(domain, grace.Record{})
		if a.ctx != nil {
			a.start(k)
		}
	}
	k.box.put(a.cfg.Clock.Now(), func(h *hints) { h.cluster = true })
}

// maxStrange bounds what is remembered of names that are not ours.
const maxStrange = 1000

// maxName is the longest domain name that libvirt can run: it writes
// NAME.xml.new, and a file name has 255 bytes (tried with libvirt 9.0).
const maxName = 255 - len(".xml.new")

func badName(name string) string {
	if _, _, ok := grace.SplitDomainName(name); !ok {
		return "its name is not <namespace>_<name>"
	}
	if len(name) > maxName {
		return "its name is too long for a libvirt domain"
	}
	return ""
}

func (a *Agent) reject(name, problem string) {
	if a.strange[name] || len(a.strange) >= maxStrange {
		return
	}
	a.strange[name] = true
	a.cfg.Meter.Rejected("name")
	a.log.Warn("not a VM that can be guarded", "name", name, "problem", problem)
}

// DomainChanged takes a hypervisor's event. It does not block. Domains that
// are not ours are ignored.
func (a *Agent) DomainChanged(ev hypervisor.Event) {
	if ev.Name == "" {
		select {
		case a.relist <- struct{}{}:
		default:
		}
		return
	}
	a.mu.Lock()
	k := a.keepers[ev.Name]
	a.mu.Unlock()
	if k == nil {
		return
	}
	k.box.put(a.cfg.Clock.Now(), func(h *hints) {
		switch {
		case ev.End == grace.EndUnknown:
			h.domain = true
		case h.end == grace.EndUnknown:
			h.end, h.endOf = ev.End, ev.UUID
		case h.endOf != ev.UUID:
			h.domain = true
		}
	})
}

// keep makes a keeper; the caller holds the lock.
func (a *Agent) keep(domain string, r grace.Record) *keeper {
	k := newKeeper(a, domain, r)
	a.keepers[domain] = k
	return k
}

// startAll arms every deadline before anything else is done: to look at many
// VMs takes its time. The caller holds the lock.
func (a *Agent) startAll() {
	all := slices.SortedFunc(maps.Values(a.keepers), func(x, y *keeper) int { return cmp.Compare(x.due(), y.due()) })
	under := 0
	for _, k := range all {
		if k.arm() {
			under++
		}
	}
	a.log.Info("every deadline of the records is armed", "shutdowns", under)
	for _, k := range all {
		a.start(k)
	}
}

// start lets a keeper run; the caller holds the lock.
func (a *Agent) start(k *keeper) {
	a.wg.Go(func() { k.run(a.ctx) })
}

// retire forgets an idle keeper, unless there is news for it.
func (a *Agent) retire(k *keeper) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, news := k.box.waiting(); news {
		return false
	}
	delete(a.keepers, k.domain)
	return true
}

// list asks the hypervisor for everything, because events get lost. It returns
// whether there was anything new, or nothing could be learned.
func (a *Agent) list(ctx context.Context) (news bool) {
	a.mu.Lock()
	ours := make(map[string]*keeper, len(a.keepers))
	for name, k := range a.keepers {
		ours[name] = k
	}
	a.mu.Unlock()
	ctx, cancel := bounded(ctx, lookTimeout)
	defer cancel()
	domains, err := a.cfg.Hypervisor.List(ctx, func(name string) bool { return ours[name] != nil })
	a.setListed()
	if err != nil {
		a.log.Debug("cannot list domains", "err", err)
		return true
	}
	now := a.cfg.Clock.Now()
	for i := range domains {
		if k := ours[domains[i].Name]; k != nil {
			news = k.box.list(now, &domains[i]) || news
			delete(ours, domains[i].Name)
		}
	}
	for _, k := range ours {
		// A list that leaves a domain out is no proof: its keeper asks for it.
		news = k.box.list(now, &hypervisor.Domain{}) || news
	}
	return news
}

func (a *Agent) setListed() {
	a.mu.Lock()
	a.listed = true
	a.mu.Unlock()
}

// Ready tells whether libvirt was tried once, the records are guarded and none
// of them waits for a disk that refuses it or does not answer.
func (a *Agent) Ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keepers {
		if k.unwritten.Load() {
			return false
		}
	}
	return a.listed
}

// SaveAgain is called when the cache has lost what was put there. It does not
// block.
func (a *Agent) SaveAgain() { a.hintAll(func(h *hints) { h.save = true }) }

func (a *Agent) hintAll(change func(*hints)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keepers {
		k.box.put(a.cfg.Clock.Now(), change)
	}
}

// Alive tells whether every keeper still takes its hints.
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

// Phases counts the recorded VMs by phase.
func (a *Agent) Phases() map[grace.Phase]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := map[grace.Phase]int{grace.Running: 0, grace.ShuttingDown: 0, grace.Destroying: 0}
	for _, k := range a.keepers {
		if phase, ok := k.phase.Load().(grace.Phase); ok && phase != "" {
			count[phase]++
		}
	}
	return count
}
