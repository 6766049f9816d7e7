package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// finishTries is how often a launcher directory is answered in before the
// keeper goes on.
const (
	finishTries = 5
	finishPause = 200 * time.Millisecond
)

// finish reports the end, and lets go of trigger and record in this order:
// whatever is done twice after a crash does no harm.
func (k *keeper) finish(d grace.Decision, now grace.Mono) {
	status := signals.Status{
		Version: signals.Version, UID: k.vmUID(), Phase: grace.Stopped, Cause: d.Cause, Outcome: d.Outcome,
		StartedAt: k.rec.Shutdown.StartedAt, Deadline: k.rec.Shutdown.DeadlineAt,
		EndedAt: k.cfg.Clock.Wall().UTC(), Message: endMessage(d.Outcome, k.obs.End),
	}
	if d.Cause != "" {
		var took time.Duration
		if k.rec.ShuttingDown() {
			took = now.Sub(k.rec.Shutdown.Start)
		}
		k.cfg.Meter.Stopped(d.Cause, d.Outcome, took)
		k.log.Info("stopped", "rule", d.Rule, "cause", d.Cause, "outcome", d.Outcome, "took", took)
		k.reportEnd(d, took, status.Message)
	} else {
		k.log.Info("the VM ended by itself", "rule", d.Rule, "outcome", d.Outcome)
	}
	k.letGo(&status)
}

func endMessage(o grace.Outcome, e grace.End) string {
	switch {
	case o == grace.Lost && e == grace.EndUnknown:
		return "the VM is gone; libvirt does not say why"
	case o == grace.Lost:
		return fmt.Sprintf("the VM was %s", e)
	default:
		return ""
	}
}

// letGo clears the traces of a VM and makes the keeper ready for the next
// instance. Without a status nothing is reported and the trigger stays.
func (k *keeper) letGo(status *signals.Status) {
	k.finishing = true
	k.disarm()
	rec, dir := k.rec, k.dir
	wait, done := k.dirTurn.take()
	k.worker(func(ctx context.Context) func() {
		defer done()
		var err error
		kept := false
		if status != nil && wait(ctx) {
			err = insist(ctx, func() (err error) { kept, err = k.answer(dir, *status, &rec); return err })
			k.settle(ctx)
		}
		return func() {
			if err != nil {
				k.log.Error("cannot answer in the launcher directory", "err", err)
			}
			if status != nil {
				k.told = *status
			}
			if status != nil && !kept {
				k.spent = k.trigger // where it could not be removed, the next instance must not suffer
				k.obs.Trigger = false
			}
			if k.obs.Recorded {
				k.forget()
			}
			k.reset()
		}
	})
}

// answer reports the end, and then takes the trigger away, unless it is kept
// for the next instance.
func (k *keeper) answer(dir Launcher, status signals.Status, rec *grace.Record) (kept bool, err error) {
	view, err := dir.Look()
	if err != nil || !view.Present {
		return false, err // a launcher directory that is gone needs no answer
	}
	kept = k.forNext(view, rec, status.UID)
	if err = dir.WriteStatus(status); !kept && view.Trigger {
		err = errors.Join(err, dir.RemoveTrigger(view.TriggerID))
	}
	return kept, err
}

// forget removes the record, behind every save that is still under way.
func (k *keeper) forget() {
	wait, done := k.cacheTurn.take()
	k.worker(func(ctx context.Context) func() {
		defer done()
		if !wait(ctx) {
			return func() {}
		}
		err := k.cfg.Cache.Delete(k.domain)
		return func() {
			switch {
			case err == nil:
				k.left = false
				return
			case !k.left:
				k.cfg.Meter.Rejected("record_write")
				k.log.Error("cannot remove the record of a stopped VM; trying on", "err", err)
			}
			k.left, k.forgetAt = true, k.now().Add(lookAfterError)
		}
	})
}

// insist tries a few times.
func insist(ctx context.Context, try func() error) error {
	err := try()
	for range finishTries {
		if err == nil || !pause(ctx, finishPause) {
			break
		}
		err = try()
	}
	return err
}

// reset makes the keeper ready for another instance.
func (k *keeper) reset() {
	release(k, &k.qemu)
	old := k.obs
	if old.Gone {
		k.before = k.rec.Instance
	}
	k.rec, k.finishing, k.made, k.instances = grace.Record{}, false, k.made+1, k.instances+1
	k.obs = old.Next()
	k.metadata, k.unidentified = grace.Statement{}, 0
	clear(k.reported)
	k.clusterSeen()
	k.resolve()
	k.publish()
	k.look()
	if old.Gone {
		k.probeAt = k.now().Add(leaveRetry) // unless an event comes first
	} else {
		k.probe()
	}
}

// afterAsk is how long status.json waits at most for the guest to be asked.
const afterAsk = 100 * time.Millisecond

// tell says in an Event and in status.json what is new: after the record is
// durable, or when it is clear that it cannot be. status.json waits for the
// guest to be asked. It returns when it has to be called again.
func (k *keeper) tell(now grace.Mono) grace.Mono {
	if !k.obs.Recorded || k.obs.Unsaved && !k.obs.Save.Failed {
		return grace.Never
	}
	k.reportStart()
	for _, c := range []*grace.Call{&k.obs.AskACPI, &k.obs.AskVM} {
		if until := c.Last.Add(afterAsk); c.Running && now < until {
			return until
		}
	}
	k.writeStatus()
	return grace.Never
}

func (k *keeper) writeStatus() {
	if k.telling || !k.view.Present {
		return
	}
	status := signals.Status{
		Version: signals.Version, UID: k.vmUID(), Phase: k.rec.Phase(k.now()), Cause: k.rec.Shutdown.Cause,
		StartedAt: k.rec.Shutdown.StartedAt, Deadline: k.rec.Shutdown.DeadlineAt,
	}
	if k.rec.Shutdown.DryRun {
		status.Message = "dry run: nothing is done"
	}
	k.publish()
	if status == k.told {
		return
	}
	k.telling = true
	k.told = status
	dir := k.dir
	wait, done := k.dirTurn.take()
	k.worker(func(ctx context.Context) func() {
		defer done()
		if !wait(ctx) {
			return func() {}
		}
		err := dir.WriteStatus(status)
		return func() {
			k.telling = false
			if err != nil {
				k.log.Warn("cannot write status.json", "err", err)
			}
		}
	})
}

// pause returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
