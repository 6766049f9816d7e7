package agent

import (
	"context"
	"errors"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// finish logs how the VM ended. The next steps (Answer, FlushEvents, Reset, Remove) may
// each be done twice after a crash.
func (k *keeper) finish(d grace.Decision, now grace.Mono) {
	k.apply(d, now)
	k.disarm()
	e := k.vm.Ending()
	if e.Cause == "" {
		k.log.Info("the VM ended by itself", "rule", d.Rule, "outcome", e.Outcome)
		return
	}
	k.a.cfg.Meter.Stopped(e.Cause, e.Outcome, e.Took)
	k.log.Info("stopped", "rule", d.Rule, "cause", e.Cause, "outcome", e.Outcome, "took", e.Took)
	k.reportEnd(e)
}

// writeStatus writes status.json.
func (k *keeper) writeStatus(d grace.Decision, now grace.Mono) {
	dir, status := k.dir, k.vm.Status(now)
	k.call(d, k.dirOrder.keep(func(context.Context) error { return dir.WriteStatus(status) }), func(err error, _ int) {
		if err != nil {
			k.log.Warn("cannot write status.json", "err", err)
		}
	})
}

// answer reports the end, and then removes the trigger, unless it is kept for the next
// instance or one that is still to come. It removes only the trigger that it saw, and
// none that comes meanwhile.
func (k *keeper) answer(d grace.Decision, now grace.Mono) {
	dir, rec, status, pending := k.dir, k.vm.Record(), k.vm.Status(now), k.vm.Ending().Kept
	boot, begunBy, kept := k.a.cfg.Policy.BootID, k.vm.BegunBy(), pending
	k.call(d, k.dirOrder.keep(func(context.Context) error {
		view, err := dir.Look()
		if err != nil || !view.Present {
			return err // a launcher directory that is gone needs no answer
		}
		kept = pending || view.TriggerID != begunBy && rec.ForNext(view.Directory, boot, status.UID)
		if err = dir.WriteStatus(status); view.Trigger && !kept {
			err = errors.Join(err, dir.RemoveTrigger(view.TriggerID))
		}
		return err
	}), func(err error, _ int) {
		k.vm.Ending().Kept = kept
		if err != nil {
			k.log.Error("cannot write the final status.json, or remove the trigger", "err", err)
		}
	})
}

// flushEvents runs before a record is removed: until then a restarted agent reports lost
// Events again.
func (k *keeper) flushEvents(d grace.Decision, _ grace.Mono) {
	k.call(d, within(flushTimeout, func(ctx context.Context) error {
		if k.a.cfg.Cluster != nil {
			k.a.cfg.Cluster.FlushEvents(ctx, k.vm.Namespace, k.vm.Name)
		}
		return nil
	}), func(error, int) {})
}

// reset prepares for the next instance.
func (k *keeper) reset(d grace.Decision, now grace.Mono) {
	k.disarm()
	k.apply(d, now)
	release(k, &k.qemu)
}

// removeRecord removes the record after every save that is still under way.
func (k *keeper) removeRecord(d grace.Decision, _ grace.Mono) {
	k.call(d, k.cacheOrder.keep(func(context.Context) error { return k.a.cfg.Cache.Delete(k.domain) }), func(err error, try int) {
		if err != nil && try == 1 {
			k.a.cfg.Meter.Rejected("record_write")
			k.log.Error("cannot remove the record of a stopped VM; retrying", "err", err)
		}
	})
}

// removeTrigger removes a trigger that belongs to no VM here. If that fails the trigger
// is ignored from then on, so that it cannot shut down a later instance.
func (k *keeper) removeTrigger(d grace.Decision, now grace.Mono) {
	reason, text := "trigger_orphan", "its shim is gone"
	if d.Rule == "leftover-trigger" {
		reason, text = "trigger_uid", "it names another VM: a leftover"
	}
	k.a.cfg.Meter.Rejected(reason)
	k.log.Warn("removing a trigger", "why", text)
	dir := k.dir
	k.vm.Done(d, grace.Result{}, now) // and not again when it has been tried: a later trigger may be there by then
	remove := k.dirOrder.keep(func(context.Context) error { return dir.RemoveTrigger(d.Trigger) })
	k.worker(func(ctx context.Context) func() {
		err := remove(ctx)
		return func() {
			if err != nil {
				k.log.Warn("cannot remove the trigger; it is ignored from now on", "err", err)
			}
		}
	})
}

func (k *keeper) save(d grace.Decision, now grace.Mono) {
	if d.MayWait && k.saveTurn == 0 {
		k.saveTurn = k.a.saves.turn(now)
	}
	if d.MayWait && now < k.saveTurn {
		k.vm.SaveLater(k.saveTurn)
		return
	}
	k.saveTurn = 0
	rec, failing := k.vm.Record(), k.summary.Load().Unwritable
	k.call(d, k.cacheOrder.keep(func(context.Context) error { return k.a.cfg.Cache.Put(rec) }), func(err error, _ int) {
		k.arm() // what waited for this waits no longer
		switch {
		case err != nil && !failing:
			k.a.cfg.Meter.Rejected("record_write")
			k.log.Error("cannot write the record: going on from memory; a restart of the agent would forget it", "err", err)
		case err == nil && failing:
			k.log.Info("the record is on disk again")
		}
	})
}
