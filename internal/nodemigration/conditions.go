package nodemigration

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

const (
	// settleTime is from a change to the look that it causes: several changes, one
	// look.
	settleTime = 500 * time.Millisecond
	// tries are how often a VM that is not guarded yet is looked for after a change.
	tries = 10
	// judgeEvery is for what tells nobody of its change: the file below a disk.
	judgeEvery = 5 * time.Minute
	// retryEvery is how often what could not be told is tried again.
	retryEvery = time.Minute
)

// VMI is a VMI of this node, and what it shows of its condition LiveMigratable.
type VMI struct {
	Namespace, Name, UID string
	Shown                Verdict
	// Pinned says what keeps its launcher pod from being made anew elsewhere.
	Pinned string
}

// VMIs are what the API server knows.
type VMIs interface {
	// Movables are the VMIs of this node, from memory.
	Movables() []VMI
	// TellMovable sets the condition LiveMigratable, and nothing else.
	TellMovable(ctx context.Context, v VMI, is Verdict) error
}

// Conditions keeps the condition LiveMigratable of this node's VMIs. What cannot be
// told stays as it was.
type Conditions struct {
	VMIs VMIs
	// Running tells whether the domain is guarded and nobody ends it.
	Running func(domain string) bool
	// Look says what is known of a VM but its pod. ErrNotFound: nothing.
	Look func(ctx context.Context, domain string) (Guest, error)
	Log  *slog.Logger

	once  sync.Once
	wake  chan struct{}
	mu    sync.Mutex
	dirty map[string]int // domains, and how often they are looked for; "" is all
}

func (c *Conditions) init() {
	c.once.Do(func() { c.wake, c.dirty = make(chan struct{}, 1), map[string]int{"": tries} })
}

// Changed has a domain looked at soon, all of them for "". It does not block.
func (c *Conditions) Changed(domain string) {
	c.init()
	c.mu.Lock()
	c.dirty[domain] = tries
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run judges until ctx ends.
func (c *Conditions) Run(ctx context.Context) {
	c.init()
	all, again := time.NewTicker(judgeEvery), time.NewTicker(retryEvery)
	defer all.Stop()
	defer again.Stop()
	settled := time.NewTimer(0)
	defer settled.Stop()
	said := map[string]string{} // what failed last, by domain
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			settled.Reset(settleTime)
		case <-all.C:
			c.Changed("")
		case <-again.C:
			for domain := range said {
				c.Changed(domain)
			}
		case <-settled.C:
			if c.pass(ctx, said) {
				settled.Reset(settleTime)
			}
		}
	}
}

// pass judges what has changed, and tells whether it is to be called again soon.
func (c *Conditions) pass(ctx context.Context, said map[string]string) (again bool) {
	c.mu.Lock()
	dirty := c.dirty
	c.dirty = map[string]int{}
	c.mu.Unlock()
	there := map[string]bool{}
	for _, v := range c.VMIs.Movables() {
		domain := grace.DomainName(v.Namespace, v.Name)
		there[domain] = true
		left := max(dirty[""], dirty[domain])
		if ctx.Err() != nil || left == 0 {
			continue
		}
		if !c.Running(domain) {
			again = c.later(domain, left-1) || again
			continue
		}
		err := c.judge(ctx, domain, v)
		if err != nil && said[domain] != err.Error() && ctx.Err() == nil {
			c.Log.Warn("cannot say whether the VM can be live-migrated; trying again",
				"namespace", v.Namespace, "name", v.Name, "every", retryEvery, "err", err)
		}
		delete(said, domain)
		if err != nil {
			said[domain] = err.Error()
		}
	}
	for domain := range said {
		if !there[domain] {
			delete(said, domain)
		}
	}
	return again
}

// later has a domain looked for again, left times.
func (c *Conditions) later(domain string, left int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty[domain] = max(c.dirty[domain], left)
	return left > 0
}

func (c *Conditions) judge(ctx context.Context, domain string, v VMI) error {
	looking, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	g, err := c.Look(looking, domain)
	if errors.Is(err, hypervisor.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	g.Pinned = v.Pinned
	is, err := Judge(g)
	if err != nil || is == v.Shown {
		return err
	}
	telling, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	if err := c.VMIs.TellMovable(telling, v, is); err != nil {
		return err //nolint:wrapcheck // it says what was tried
	}
	c.Log.Info("told whether the VM can be live-migrated", "namespace", v.Namespace, "name", v.Name,
		"liveMigratable", is.Status, "reason", is.Reason, "message", is.Message)
	return nil
}
