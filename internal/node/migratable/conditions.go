package migratable

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
	// debounce is the delay from a change to the check, so that several changes cause one.
	debounce = 500 * time.Millisecond
	// attempts is how often a VM that is not guarded yet is checked after a change.
	attempts = 10
	// recheckInterval is for changes without an event, such as of a disk's file.
	recheckInterval = 5 * time.Minute
	// retryInterval is how often a failed check or update is retried.
	retryInterval = time.Minute
	// absentFor is for how many retryIntervals, the first one in part, a launcher may wait for its
	// domain unsaid.
	absentFor = 2
	// lookTimeout bounds the look at a VM, apiTimeout an API request.
	lookTimeout = 5 * time.Second
	apiTimeout  = 10 * time.Second
)

// VMI is a VMI of this node with its present condition LiveMigratable.
type VMI struct {
	Namespace, Name, UID string
	Shown                Verdict
	// Launcher is that of its launcher pods on this node together. Launched means that one lives.
	Launcher Launcher
	Launched bool
}

// VMIs reads and updates VMIs in the API server.
type VMIs interface {
	// OfNode returns the VMIs of this node, from a cache.
	OfNode() []VMI
	// Volume asks the API server about a claim.
	Volume(ctx context.Context, namespace, claim string) (Volume, error)
	// Event tells of a VMI.
	Event(v VMI, reason, message string)
	// SetLiveMigratable sets the condition LiveMigratable, and nothing else.
	SetLiveMigratable(ctx context.Context, v VMI, is Verdict) error
}

// Conditions keeps the condition LiveMigratable of this node's VMIs up to date. A condition
// that cannot be determined stays as it was.
type Conditions struct {
	VMIs VMIs
	// Running reports whether the domain is guarded and not being shut down.
	Running func(domain string) bool
	// Look returns the facts about a VM except Launcher and Volume. It fails with hypervisor.ErrNotFound
	// if no condition is to be set.
	Look func(ctx context.Context, domain string) (Guest, error)
	Log  *slog.Logger
	// Absent reports whether certainly nothing of a VM is on this node, and whether its condition is
	// ours. It may be nil.
	Absent func(ctx context.Context, domain string) (absent, ours bool)

	absent map[string]int // by domain, for how many retryIntervals; only Run has it

	once  sync.Once
	wake  chan struct{}
	mu    sync.Mutex
	dirty map[string]int // remaining attempts by domain; "" is all domains
}

func (c *Conditions) init() {
	c.once.Do(func() { c.wake, c.dirty = make(chan struct{}, 1), map[string]int{"": attempts} })
}

// Changed schedules the check of a domain, of all domains for "". It does not block, and
// may be called before Run.
func (c *Conditions) Changed(domain string) {
	c.init()
	c.mu.Lock()
	c.dirty[domain] = attempts
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run checks VMs until ctx ends.
func (c *Conditions) Run(ctx context.Context) {
	c.init()
	all, again := time.NewTicker(recheckInterval), time.NewTicker(retryInterval)
	defer all.Stop()
	defer again.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	c.absent = map[string]int{}
	set := true                       // one tenant's changes must not put off the check of the others
	lastErrors := map[string]string{} // by domain, of those that failed last
	claims := &volumes{of: c.VMIs, has: map[[2]string]Volume{}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			if !set {
				set = true
				timer.Reset(debounce)
			}
		case <-all.C:
			clear(claims.has)
			c.Changed("")
		case <-again.C:
			for domain := range lastErrors {
				c.Changed(domain)
			}
			for domain := range c.absent {
				c.absent[domain]++
				c.Changed(domain)
			}
		case <-timer.C:
			if set = c.pass(ctx, lastErrors, claims); set {
				timer.Reset(debounce)
			}
		}
	}
}

// pass checks the VMs that have changed, and reports whether to call it again soon.
func (c *Conditions) pass(ctx context.Context, lastErrors map[string]string, claims *volumes) (again bool) {
	c.mu.Lock()
	dirty := c.dirty
	c.dirty = map[string]int{}
	c.mu.Unlock()
	there := map[string]bool{}
	for _, v := range c.VMIs.OfNode() {
		domain := grace.DomainName(v.Namespace, v.Name)
		there[domain] = true
		left := max(dirty[""], dirty[domain])
		if ctx.Err() != nil || left == 0 {
			continue
		}
		if !c.Running(domain) {
			again = c.later(domain, left-1) || again
			c.noDomain(ctx, domain, v)
			continue
		}
		delete(c.absent, domain)
		err := c.judge(ctx, domain, v, claims)
		if err != nil && lastErrors[domain] != err.Error() && ctx.Err() == nil {
			c.Log.Warn("cannot determine whether the VM can be live-migrated; trying again",
				"namespace", v.Namespace, "name", v.Name, "every", retryInterval, "err", err)
		}
		delete(lastErrors, domain)
		if err != nil {
			lastErrors[domain] = err.Error()
		}
	}
	for domain := range lastErrors {
		if !there[domain] {
			delete(lastErrors, domain)
		}
	}
	return again
}

// noDomain tells of a VM whose launcher has waited for its domain for a while: the domain may have
// another name, and then it outlives its launcher.
func (c *Conditions) noDomain(ctx context.Context, domain string, v VMI) {
	if c.Absent == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	absent, ours := c.Absent(ctx, domain)
	waited, known := c.absent[domain]
	switch {
	case !absent || !v.Launched:
		delete(c.absent, domain)
		return
	case !known:
		c.absent[domain] = 0
		return
	case waited < absentFor:
		return
	}
	is := Verdict{Status: "False", Reason: ReasonNoDomain, Message: "its launcher pod lives, and its guest does not run here: a domain of the node's libvirt has to be named " + domain}
	if is == v.Shown {
		return
	}
	c.VMIs.Event(v, is.Reason, is.Message)
	if !ours {
		delete(c.absent, domain) // the Event says it once
	} else if err := c.VMIs.SetLiveMigratable(ctx, v, is); err != nil {
		c.Log.Warn("cannot say that a VM has no domain; trying again", "namespace", v.Namespace, "name", v.Name, "err", err)
	}
}

// later schedules left more attempts for a domain, and reports whether there are any.
func (c *Conditions) later(domain string, left int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty[domain] = max(c.dirty[domain], left)
	return left > 0
}

func (c *Conditions) judge(ctx context.Context, domain string, v VMI, claims *volumes) error {
	lookCtx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	g, err := c.Look(lookCtx, domain)
	if errors.Is(err, hypervisor.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	claimsCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	g.Launcher = v.Launcher
	g.Volume = func(claim string) (Volume, error) { return claims.volume(claimsCtx, v.Namespace, claim) }
	is, err := Judge(g)
	if err != nil || is == v.Shown {
		return err
	}
	updateCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if err := c.VMIs.SetLiveMigratable(updateCtx, v, is); err != nil {
		return err //nolint:wrapcheck // it names what was tried
	}
	c.Log.Info("set the condition LiveMigratable", "namespace", v.Namespace, "name", v.Name,
		"liveMigratable", is.Status, "reason", is.Reason, "message", is.Message)
	return nil
}
