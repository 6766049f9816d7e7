package hold

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// listInterval is how often the launchers are compared with what is known, beside news.
	listInterval = 5 * time.Second
	// stuck is how long the keeper may take for that.
	stuck = 30 * time.Second
)

// Keeper keeps the holds of a node. Each launcher has a goroutine.
type Keeper struct {
	cfg  Config
	news chan struct{}
	beat atomic.Int64 // grace.Mono of the last list
	down atomic.Bool  // the node shuts down
	ends sync.WaitGroup

	mu        sync.Mutex
	launchers map[string]*launcher // by pod UID
	stale     []string             // domains of records that mean nothing here
}

// New returns a Keeper that does nothing before Run.
func New(cfg Config) *Keeper {
	k := &Keeper{cfg: cfg, news: make(chan struct{}, 1), launchers: map[string]*launcher{}}
	k.beat.Store(int64(cfg.Clock.Now()))
	return k
}

// Guard goes on with recorded holds. Call it before Run, or during it for records that could
// not be read before.
func (k *Keeper) Guard(records []grace.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range records {
		switch {
		case r.BootID != k.cfg.BootID || !r.Hold.UnderWay() || r.Pod == "":
			k.stale = append(k.stale, r.Domain())
		case k.launchers[r.Pod] == nil:
			k.launchers[r.Pod] = newLauncher(k, r)
		}
	}
	poke(k.news)
}

// SaveAgain has every hold written anew: its record may be lost.
func (k *Keeper) SaveAgain() {
	for _, l := range k.all() {
		l.unsaved.Store(true)
		poke(l.news)
	}
}

// LauncherChanged is called with a pod's UID when its launcher directory may have changed. It
// does not block.
func (k *Keeper) LauncherChanged(uid string) {
	k.mu.Lock()
	l := k.launchers[uid]
	k.mu.Unlock()
	if l != nil {
		poke(l.news)
	}
}

// ClusterChanged is called when what the cluster says of a VM may have changed, with empty
// strings for all VMs. It does not block.
func (k *Keeper) ClusterChanged(namespace, name string) {
	poke(k.news)
	for _, l := range k.all() {
		if name == "" || l.rec.Namespace == namespace && l.rec.Name == name {
			poke(l.news)
		}
	}
}

// NodeShutdown ends all holds while the node shuts down: its launchers are signalled anyway.
func (k *Keeper) NodeShutdown(underWay bool) {
	k.down.Store(underWay)
	k.ClusterChanged("", "")
}

// Phases counts the holds.
func (k *Keeper) Phases() map[grace.Phase]int {
	n := 0
	for _, l := range k.all() {
		if l.holding.Load() {
			n++
		}
	}
	return map[grace.Phase]int{grace.Held: n}
}

// Holding reports whether there is any hold.
func (k *Keeper) Holding() bool { return k.Phases()[grace.Held] > 0 }

// Alive reports whether the keeper still takes news.
func (k *Keeper) Alive() bool {
	return k.cfg.Clock.Now().Sub(grace.Mono(k.beat.Load())) < stuck
}

func (k *Keeper) all() []*launcher {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.launchers))
}

// Run keeps the holds until ctx ends. It leaves them as they are then, for the next agent.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(listInterval)
	defer tick.Stop()
	for {
		k.list(ctx)
		k.beat.Store(int64(k.cfg.Clock.Now()))
		select {
		case <-ctx.Done():
			k.ends.Wait()
			return nil
		case <-k.news:
		case <-tick.C:
		}
	}
}

// list starts the launchers that are new.
func (k *Keeper) list(ctx context.Context) {
	pods := k.cfg.Cluster.Launchers()
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range pods {
		if p := &pods[i]; p.Hook && k.launchers[p.UID] == nil {
			k.launchers[p.UID] = newLauncher(k, grace.Record{Namespace: p.Namespace, Name: p.VM, UID: p.VMI, Pod: p.UID, BootID: k.cfg.BootID})
		}
	}
	if stale := k.stale; len(stale) > 0 {
		k.stale = nil
		go k.remove(stale) // a disk that hangs must not delay the agent's end
	}
	for uid, l := range k.launchers {
		if l.begun {
			continue
		}
		l.begun = true
		k.cfg.Watch(uid, l.rec.Namespace, l.rec.Name)
		k.ends.Go(func() {
			if l.run(ctx) {
				k.forget(uid)
			}
		})
	}
}

// remove removes records of another boot, or of an agent that had VMs of its own.
func (k *Keeper) remove(domains []string) {
	for _, domain := range domains {
		if err := k.cfg.Records.Delete(domain); err != nil {
			k.cfg.Log.Warn("a record that means nothing any more cannot be removed", "domain", domain, "err", err)
		}
	}
	k.SaveAgain() // a hold of such a domain may have begun meanwhile
}

func (k *Keeper) forget(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.launchers, uid)
	k.cfg.Unwatch(uid)
}

// poke never blocks: who is woken already looks at everything.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
