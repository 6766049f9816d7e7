// Package podcondition keeps the condition ShuttingDown of this node's launcher pods: what
// the agent knows of a shutdown, for people. Nothing that happens to a guest depends on it.
package podcondition

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/vmgrace/vmgrace/api/launcherpod/status"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// debounce is the delay from a change to the write, so that several changes cause one.
	debounce = 100 * time.Millisecond
	// retryInterval is how often failed writes are retried, apiTimeout bounds each.
	retryInterval = 10 * time.Second
	apiTimeout    = 10 * time.Second
	// perSecond and burst bound the writes of a node whose VMs all shut down.
	perSecond = 5
	burst     = 20
)

// Condition is the condition ShuttingDown. The zero value is none.
type Condition struct{ Status, Reason, Message string }

// Pod is a launcher pod of this node, with the condition that it has.
type Pod struct {
	Namespace, Name, UID string
	// Domain is the name of its VM's domain.
	Domain string
	Shown  Condition
	Done   bool // Succeeded or Failed
}

// Pods reads and updates launcher pods in the API server.
type Pods interface {
	// Launchers returns the launcher pods of this node, from a cache.
	Launchers() []Pod
	// SetShuttingDown sets the condition ShuttingDown, and nothing else.
	SetShuttingDown(ctx context.Context, p Pod, is Condition) error
}

// Conditions keeps the conditions up to date.
type Conditions struct {
	Pods Pods
	// Summary returns what the agent knows of a domain.
	Summary func(domain string) grace.Summary
	Log     *slog.Logger

	wake chan struct{}
}

// New returns Conditions that do nothing before Run.
func New(pods Pods, summary func(domain string) grace.Summary, log *slog.Logger) *Conditions {
	return &Conditions{Pods: pods, Summary: summary, Log: log, wake: make(chan struct{}, 1)}
}

// Changed schedules a look at all pods. It does not block, and may be called before Run.
func (c *Conditions) Changed() {
	select {
	case c.wake <- struct{}{}:
	default: // one is enough
	}
}

// Run writes conditions until ctx ends. A failed write is retried, with what is known then. It
// is logged when it fails again: the write to a pod that is gone fails once, until the watch has
// noticed.
func (c *Conditions) Run(ctx context.Context) {
	limit := rate.NewLimiter(perSecond, burst)
	timer := time.NewTimer(debounce)
	defer timer.Stop()
	soon := true // the timer is that of a change, and another change does not put it off
	reported := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			if !soon {
				timer.Reset(debounce)
				soon = true
			}
		case <-timer.C:
			again := !soon
			soon = false
			err := c.pass(ctx, limit)
			if err == nil || ctx.Err() != nil {
				reported = false
				continue
			}
			timer.Reset(retryInterval)
			if again && !reported {
				c.Log.Warn("cannot show a shutdown on its launcher pod; trying again", "every", retryInterval, "err", err)
				reported = true
			}
		}
	}
}

// pass writes each condition that differs, and returns the last error.
func (c *Conditions) pass(ctx context.Context, limit *rate.Limiter) (err error) {
	for _, p := range c.Pods.Launchers() {
		is, write := Wanted(c.Summary(p.Domain), p)
		if !write {
			continue
		}
		if limit.Wait(ctx) != nil {
			return ctx.Err()
		}
		if failed := c.set(ctx, p, is); failed != nil {
			err = failed
		}
	}
	return err
}

func (c *Conditions) set(ctx context.Context, p Pod, is Condition) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return c.Pods.SetShuttingDown(ctx, p, is) //nolint:wrapcheck // it names what was tried
}

// Wanted returns the condition of a pod, and whether it has to be written. A VM that has ended
// leaves the condition as it is: the pod ends, too.
func Wanted(s grace.Summary, p Pod) (is Condition, write bool) {
	if p.Done || s.Pod != p.UID {
		return Condition{}, false
	}
	switch s.Phase {
	case grace.Held, grace.ShuttingDown, grace.Destroying:
		is = shutdown(s)
	case grace.Running:
		if p.Shown.Status != "True" {
			return Condition{}, false
		}
		is = Condition{Status: "False", Reason: "NotShuttingDown"} // it is not held any more
	default:
		return Condition{}, false
	}
	return is, is != p.Shown
}

func shutdown(s grace.Summary) Condition {
	shown := status.Shutdown{Phase: status.ShuttingDown, Deadline: s.DeadlineAt, GracePeriodSeconds: grace.WholeSeconds(s.Period), Guest: s.Unheard}
	if s.Phase == grace.Held {
		shown.Phase = status.Held
	}
	return Condition{Status: "True", Reason: string(s.Cause), Message: shown.Message()}
}
