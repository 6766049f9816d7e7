package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/internal/logs"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// maxSteps bounds the decisions of one wake-up. A rule that applies again after its
// action is a bug, and must not use up a core.
const maxSteps = 50

// keeper carries out the decisions about one VM. It owns the handles, and decides nothing
// itself. Only its own goroutine uses its fields, except box and summary.
type keeper struct {
	a      *Agent
	log    *slog.Logger
	domain string
	vm     *grace.VM

	box     *mailbox
	summary atomic.Pointer[grace.Summary] // as of the last step; anybody may read it

	ctx     context.Context //nolint:containedctx // the keeper's life; workers get it
	workers sync.WaitGroup
	busy    int         // workers whose findings have not come back
	back    chan func() // what workers found, to be run by the keeper

	dir      Launcher
	rejected []watch.Rejection // in the last look
	qemu     Process           // of the record's instance, nil if it cannot be watched
	armed    Armed             // nil where no signal is armed
	shim     Watched           // the holder of vm.json's lock, nil if there is none to watch

	cacheOrder, dirOrder order
	saveTurn             grace.Mono // when to make a save that may wait, 0 if there is none
	rule                 string     // the last one
	timer                *time.Timer
}

func newKeeper(a *Agent, domain string, r grace.Record) *keeper {
	namespace, name, _ := grace.SplitDomainName(domain)
	k := &keeper{
		a: a, domain: domain,
		vm:   grace.NewVM(namespace, name, r, &a.cfg.Policy),
		log:  logs.Limited(a.log.With("namespace", namespace, "name", name)),
		dir:  a.cfg.Launcher(namespace, name, r.Pod),
		box:  newMailbox(),
		back: make(chan func()),
	}
	k.timer = time.NewTimer(0)
	k.timer.Stop()
	k.publish()
	return k
}

// run is the keeper's loop. It leaves the VM alone when it ends.
func (k *keeper) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	k.ctx = ctx
	defer func() {
		cancel()
		k.disarm()
		k.timer.Stop()
		release(k, &k.qemu)
		release(k, &k.shim)
		k.workers.Wait()
	}()
	if k.a.cfg.Cluster != nil {
		k.vm.AwaitCluster(k.a.started.Add(clusterTimeout))
		k.a.cfg.Watch(k.domain, k.vm.Pod().UID)
		k.clusterSeen()
	}
	for {
		k.step()
		if k.busy == 0 && k.vm.Idle() && k.a.retire(k) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-k.box.ready:
			k.handle(k.box.take())
		case found := <-k.back:
			k.busy--
			found()
		case <-k.timer.C:
		case s := <-k.sent():
			k.terminated(s)
		case <-done(k.qemu):
			k.qemuGone()
		case <-done(k.shim):
			k.log.Debug("the launcher's shim has ended")
			release(k, &k.shim)
			k.vm.DirectoryChanged()
		}
	}
}

// handle passes the hints to the core.
func (k *keeper) handle(h hints) {
	if h.record != nil && k.vm.Recover(*h.record) {
		k.log.Info("the record could be read after all", "gracePeriod", h.record.Period.Length, "cause", h.record.Shutdown.Cause)
		k.restore()
	}
	if h.end != "" {
		k.vm.Ended(h.end, h.endOf, k.now())
	}
	switch {
	case h.seen == nil:
	case *h.seen == (hypervisor.Domain{}):
		k.vm.DomainMissingFromList()
	default:
		k.domainSeen(*h.seen)
	}
	if h.cluster {
		k.clusterSeen()
	}
	if h.node {
		k.vm.SeeNode(k.a.nodeShutdown(k.domain))
	}
	if h.launcher {
		k.vm.DirectoryChanged()
	}
	if h.save {
		k.vm.SaveAgain()
	}
	if h.domain {
		k.vm.DomainChanged()
	}
}

func (k *keeper) now() grace.Mono { return k.a.cfg.Clock.Now() }

// step decides and acts until it has to wait.
func (k *keeper) step() {
	for range maxSteps {
		now := k.now()
		d := k.vm.Next(now)
		if d.Rule != k.rule {
			k.rule = d.Rule
			k.log.Debug("decided", "rule", d.Rule, "do", d.Do)
		}
		if d.Do == grace.Wait {
			k.sleep(d.At, now)
			k.publish()
			return
		}
		do, known := actions[d.Do]
		if !known {
			k.log.Error("unhandled action; this is a bug", "do", d.Do)
			break
		}
		do(k, d, now)
		k.publish()
	}
	k.log.Error("the rules did not converge; this is a bug", "rule", k.rule)
	k.sleep(k.now().Add(time.Second), k.now())
}

// worker runs work beside the keeper. The keeper, which owns the state, then runs the
// returned function.
func (k *keeper) worker(work func(ctx context.Context) func()) {
	ctx := k.ctx
	k.busy++
	k.workers.Go(func() {
		found := work(ctx)
		select {
		case k.back <- found:
		case <-ctx.Done():
		}
	})
}

// call carries out an action that can hang. done is not called if the next instance is
// there by then.
func (k *keeper) call(d grace.Decision, do func(context.Context) error, done func(err error, try int)) {
	started := k.vm.Started(d, k.now())
	k.worker(func(ctx context.Context) func() {
		err := do(ctx)
		return func() {
			if k.vm.Done(d, grace.Result{Call: started, Failed: err != nil, Refused: refusal(err)}, k.now()) {
				done(err, started.Tries)
			}
		}
	})
}

// refusal returns the words of a guest that refuses a request, "" for another error.
func refusal(err error) string {
	if r, ok := errors.AsType[*hypervisor.Refusal](err); ok {
		return r.Words()
	}
	return ""
}

// within limits a call's time.
func within(limit time.Duration, do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return do(ctx)
	}
}

func (k *keeper) publish() {
	s := k.vm.Summary(k.now())
	if old := k.summary.Load(); old == nil || *old != s {
		k.summary.Store(new(s))
		if s.Unheard != "" && (old == nil || old.Unheard != s.Unheard) {
			k.log.Warn("the guest has not shut down so far", "why", s.Unheard)
		}
		if k.a.cfg.Shown != nil {
			k.a.cfg.Shown()
		}
	}
}

func done(p Watched) <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.Done()
}

// release closes a process, if there is one.
func release[P Watched](k *keeper, p *P) {
	if any(*p) == nil {
		return
	}
	if err := (*p).Close(); err != nil {
		k.log.Debug("close pidfd", "err", err)
	}
	var none P
	*p = none
}
