package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/internal/quiet"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// maxSteps bounds what one wake-up may decide: a rule that applies again
// after its action is a bug, and must not burn a core.
const maxSteps = 50

// keeper owns everything that is known of one VM. Only its own goroutine
// touches its fields, but for box, phase and unwritten.
type keeper struct {
	a   *Agent
	cfg *Config
	log *slog.Logger

	namespace, name, domain string

	dir   Launcher
	box   *mailbox
	phase atomic.Value // grace.Phase, "" without a record
	// unwritten: the record cannot be made durable.
	unwritten atomic.Bool

	ctx     context.Context //nolint:containedctx // the keeper's life; workers get it
	workers sync.WaitGroup
	busy    int         // workers whose findings have not come back
	back    chan func() // what workers found, to be run by the keeper

	rec  grace.Record
	obs  grace.Observation
	made int // counts the changes of rec
	// instances counts them: a finding of an earlier one says nothing.
	instances int

	qemu Process // of rec.Instance, nil if it cannot be watched
	shim Watched // the holder of vm.json's lock, nil if there is none to watch

	looking   bool // at the launcher directory
	lookAgain bool
	lookAt    grace.Mono // when to look at the launcher again, unasked
	lookPaid  grace.Mono // until when looks are used up; at most a burst ahead
	probeAt   grace.Mono // when to look at the domain again, unasked
	forgetAt  grace.Mono // when to try again to remove a record that is left
	left      bool       // the record of an instance that ended is still there
	view      watch.View
	trigger   watch.FileID // the trigger that is known
	spent     watch.FileID // a trigger that did its work and could not be removed
	stated    string       // by the VMI
	metadata  grace.Statement
	reported  map[string]bool         // Events by reason and key
	invalid   map[grace.Source]string // invalid statements that were logged
	cacheTurn turns
	dirTurn   turns

	unidentified grace.Mono     // since when the domain's process is unknown
	before       grace.Instance // the instance that ended last
	finishing    bool
	told         signals.Status // what status.json says
	telling      bool
	lastRule     string
	words        []func() // to be logged; see later
	timer        *time.Timer
	armed        Armed // nil where no signal is armed
}

func newKeeper(a *Agent, domain string, r grace.Record) *keeper {
	namespace, name, _ := grace.SplitDomainName(domain)
	r.Instance = r.Instance.Certain()
	k := &keeper{
		a: a, cfg: &a.cfg, namespace: namespace, name: name, domain: domain, rec: r,
		log:  quiet.New(a.log.With("namespace", namespace, "name", name)),
		dir:  a.cfg.Launcher(namespace, name, r.Pod),
		box:  newMailbox(),
		back: make(chan func()),

		invalid: map[grace.Source]string{}, reported: map[string]bool{},
	}
	k.obs.Recorded = r.Name != ""
	k.obs.Period = grace.Period{Length: a.cfg.DefaultPeriod, Source: grace.SourceDefault}
	if k.obs.Recorded {
		k.obs.Period = r.Period
		k.obs.Unsaved = a.cfg.Unsaved
	}
	k.obs.Pod.UID = r.Pod
	k.lookAt, k.probeAt, k.forgetAt = grace.Never, grace.Never, grace.Never
	k.timer = time.NewTimer(0)
	k.timer.Stop()
	k.publish()
	return k
}

// run is the keeper's life. It leaves the VM alone when it ends.
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
	if k.cfg.Cluster != nil {
		k.obs.VMIBy = k.a.started.Add(clusterPatience)
		k.cfg.Watch(k.domain, k.obs.Pod.UID)
		k.clusterSeen()
	}
	k.expect()
	k.prepare()
	k.look()
	k.probe()
	var seen *hypervisor.Domain // by a list, just now
	for {
		k.step()
		if k.idle() && k.a.retire(k) {
			return
		}
		k.knows(seen)
		seen = nil
		select {
		case <-ctx.Done():
			return
		case <-k.box.ready:
			h := k.box.take()
			k.hear(h)
			seen = h.seen
		case found := <-k.back:
			k.busy--
			found()
		case <-k.timer.C:
			k.unasked(k.now())
		case s := <-k.sent():
			k.terminated(s)
		case <-done(k.qemu):
			k.qemuGone()
		case <-done(k.shim):
			k.log.Debug("the launcher's shim has ended")
			release(k, &k.shim)
			k.look()
		}
	}
}

// unasked does the looks that no hint has asked for.
func (k *keeper) unasked(now grace.Mono) {
	if now >= k.lookAt {
		k.lookAt = grace.Never
		k.look()
	}
	if now >= k.probeAt {
		k.probeAt = grace.Never
		k.probe()
	}
	if now >= k.forgetAt {
		k.forgetAt = grace.Never
		k.left = k.left && !k.obs.Recorded // the next instance's record takes its place
		if k.left {
			k.forget()
		}
	}
}

// knows has lists leave out what they said last, as long as nothing else
// happens and nothing waits for the next one.
func (k *keeper) knows(seen *hypervisor.Domain) {
	guarded := k.obs.Recorded && k.obs.Instance == k.rec.Instance && !k.rec.ShuttingDown() && !k.obs.Unsaved && k.qemu != nil
	absent := !k.obs.Recorded && k.obs.Domain == grace.DomainAbsent
	if k.busy > 0 || !guarded && !absent {
		seen = nil
	}
	k.box.knows(seen)
}

func (k *keeper) now() grace.Mono { return k.cfg.Clock.Now() }

// idle: nothing to guard, nobody to wait for, nothing under way or due.
func (k *keeper) idle() bool {
	return k.busy == 0 && !k.left && !k.obs.Recorded && k.obs.Looked && !k.view.Present && !k.needed() && k.obs.Domain != grace.DomainUnknown && k.lookAt == grace.Never
}

// step decides and acts until there is nothing to do but wait.
func (k *keeper) step() {
	if k.finishing {
		return
	}
	for range maxSteps {
		now := k.now()
		d := grace.Decide(&k.rec, &k.obs, &k.cfg.Policy, now)
		if d.Rule != k.lastRule {
			k.lastRule = d.Rule
			k.log.Debug("decided", "rule", d.Rule, "do", d.Do)
		}
		k.unwritten.Store(k.unwritable(now))
		if d.Do != grace.Save { // the write is under way before anything is said
			k.speak()
		}
		if d.Do == grace.Wait {
			k.sleep(min(d.At, k.lookAt, k.probeAt, k.forgetAt, k.tell(now)), now)
			return
		}
		k.act(d, now)
		if k.finishing {
			return
		}
	}
	k.log.Error("a rule does not come to rest; this is a bug", "rule", k.lastRule)
	k.sleep(k.now().Add(time.Second), k.now())
}

// unwritable: the disk refuses the record or its removal, or does not answer.
func (k *keeper) unwritable(now grace.Mono) bool {
	s := &k.obs.Save
	return k.left || k.obs.Recorded && k.obs.Unsaved && (s.Failed || s.Running && now.Sub(s.Last) >= relist)
}

// worker runs work beside the keeper; the function it returns is then run by
// the keeper, which owns the state.
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

// call keeps the account of a call that can hang. What it finds out is dropped
// where the next instance is there by then; done may be nil.
func (k *keeper) call(account *grace.Call, limit time.Duration, do func(context.Context) error, done func(error)) {
	k.began(account)
	instances := k.instances
	k.worker(func(ctx context.Context) func() {
		ctx, cancel := bounded(ctx, limit)
		defer cancel()
		err := do(ctx)
		return func() {
			if instances == k.instances {
				k.ended(account, err)
				done(err)
			}
		}
	})
}

func (k *keeper) publish() {
	if !k.obs.Recorded {
		k.phase.Store(grace.Phase(""))
		return
	}
	k.phase.Store(k.rec.Phase(k.now()))
}

func done(p Watched) <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.Done()
}

// release lets go of a process, if there is one.
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
