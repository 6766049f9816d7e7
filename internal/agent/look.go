package agent

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// Looks that no event asks for: after an error, and while a shim lives that
// cannot be watched.
const (
	lookAfterError = time.Second
	lookUnwatched  = 500 * time.Millisecond
)

// A tenant can cause as many events as it likes. What is looked at more often
// than any shim needs has to wait, and so costs no more than this.
const (
	lookBurst = 10
	lookEvery = 100 * time.Millisecond
)

// look reads the launcher directory, once at a time.
func (k *keeper) look() {
	if k.looking {
		k.lookAgain = true
		return
	}
	asked := k.now()
	if due := k.lookPaid.Add(-(lookBurst - 1) * lookEvery); asked < due {
		k.lookAt = min(k.lookAt, due)
		return
	}
	k.lookPaid = max(k.lookPaid, asked).Add(lookEvery)
	k.looking = true
	known := 0
	if k.shim != nil {
		known = k.obs.Holder.PID
	}
	dir := k.dir
	k.worker(func(context.Context) func() {
		view, err := dir.Look()
		var shim Watched
		if err == nil && view.Lock == watch.LockHeld && view.Holder != 0 && view.Holder != known {
			view, shim, err = k.openShim(dir, view)
		}
		// After the look: a trigger may have come while it was under way, and its
		// grace period must not begin before it was there.
		seen := k.now()
		return func() {
			k.looking = false
			if dir != k.dir { // it is another launcher's by now
				release(k, &shim)
				k.lookAgain = true
			} else {
				k.looked(view, shim, err, seen)
			}
			if k.lookAgain {
				k.lookAgain = false
				k.look()
			}
		}
	})
}

// openShim opens the lock's holder, and looks again: a holder that is still
// the same afterwards is the process that was opened.
func (k *keeper) openShim(dir Launcher, view watch.View) (watch.View, Watched, error) {
	p, err := k.cfg.Processes.Watch(view.Holder)
	if err != nil && !errors.Is(err, process.ErrGone) {
		// It lives, and cannot be watched: it is looked at instead.
		view.Holder = 0
		return view, nil, nil
	}
	again, lookErr := dir.Look()
	if p != nil && (lookErr != nil || again.Lock != watch.LockHeld || again.Holder != view.Holder) {
		_ = p.Close() // nothing was done with it
		p = nil
		if lookErr == nil && again.Lock == watch.LockHeld {
			again.Holder = 0
		}
	}
	return again, p, lookErr
}

// looked takes over what the launcher directory says.
func (k *keeper) looked(view watch.View, shim Watched, err error, seen grace.Mono) {
	k.obs.Looked = true
	if err != nil {
		k.log.Warn("cannot look at the launcher directory; what it said before stands", "err", err)
		k.lookAt = k.now().Add(lookAfterError)
		return
	}
	k.checkClaim(&view)
	k.reject(view)
	if view.Dir != k.view.Dir {
		k.told = signals.Status{} // that was said in another directory
	}
	k.view = view
	k.obs.Ours = view.Present
	k.shimSeen(view, shim)
	k.obs.UID = cmp.Or(k.obs.Pod.VMI, view.VM.UID)
	k.triggerSeen(view, seen)
	if k.cfg.Cluster != nil && k.obs.Shim != grace.ShimAlive {
		k.podsSeen(k.cfg.Cluster.Pods(k.namespace, k.name)) // another pod may be the launcher now
	}
	k.resolve()
}

// reject counts each bad file once.
func (k *keeper) reject(view watch.View) {
	for _, r := range view.Rejected {
		known := false
		for _, old := range k.view.Rejected {
			known = known || old.Reason == r.Reason && old.Err.Error() == r.Err.Error()
		}
		if !known {
			k.cfg.Meter.Rejected(r.Reason)
			k.log.Warn("a file in the launcher directory cannot be used", "reason", r.Reason, "err", r.Err)
		}
	}
}

func (k *keeper) shimSeen(view watch.View, shim Watched) {
	if shim != nil {
		release(k, &k.shim)
		k.shim = shim
	}
	holder := grace.Holder{PID: view.Holder, Device: view.Dir.Device, File: view.File, Pod: k.obs.Pod.UID}
	switch {
	case !view.Registered:
		k.obs.Shim, k.obs.Holder = grace.ShimNone, grace.Holder{}
		release(k, &k.shim)
	case view.Lock == watch.LockHeld:
		k.obs.Shim = grace.ShimAlive
		k.obs.Holder = holder
		if k.shim != nil {
			k.obs.Holder.Start = k.shim.StartTime()
		} else {
			k.lookAt = k.now().Add(lookUnwatched)
		}
	default:
		// The same file was locked while this instance ran: its shim is dead.
		bound := k.obs.Recorded && k.rec.Launcher.SameFile(holder)
		waiting := !k.obs.Recorded && k.obs.Holder.SameFile(holder)
		if bound || waiting {
			if k.obs.Shim != grace.ShimDied {
				k.obs.Shim, k.obs.DiedAt = grace.ShimDied, k.now()
				k.log.Info("the launcher's shim was killed: vm.json is there, unlocked")
			}
		} else {
			k.obs.Shim = grace.ShimOrphan
		}
		release(k, &k.shim)
	}
}

func (k *keeper) triggerSeen(view watch.View, seen grace.Mono) {
	uid := cmp.Or(k.obs.UID, k.vmUID(), k.obs.VMI.UID)
	switch {
	case !view.Trigger:
		k.spent = watch.FileID{} // it is gone; the next one may look the same
		k.obs.Trigger = false
		return
	case view.TriggerID == k.spent:
		k.obs.Trigger = false
		return
	case view.TriggerUID != "" && uid == "":
		k.obs.Trigger = false // whose VM this is must be known first
		return
	case view.TriggerUID != "" && view.TriggerUID != uid:
		k.obs.Trigger = false
		k.log.Warn("removing a trigger that names another VM: a leftover", "uid", uid, "trigger", view.TriggerUID)
		k.cfg.Meter.Rejected("trigger_uid")
		k.removeTrigger(view.TriggerID)
		return
	case k.obs.Trigger && k.trigger == view.TriggerID:
		return
	}
	if !k.obs.Trigger {
		k.obs.TriggerAt = seen
	}
	k.obs.Trigger, k.trigger = true, view.TriggerID
	k.obs.TriggerByShim = view.TriggerUID != ""
	if k.rec.ShuttingDown() {
		k.log.Debug("another trigger; the grace period runs already", "cause", k.rec.Shutdown.Cause)
	}
}

// forNext tells whether the trigger in a launcher directory is for an instance
// after the record's: it names another VM, or another shim lives there, which
// has cleared whatever trigger it found.
func (k *keeper) forNext(view watch.View, rec *grace.Record, uid string) bool {
	if !view.Trigger || rec.Name == "" {
		return false
	}
	otherVM := view.TriggerUID != "" && uid != "" && view.TriggerUID != uid
	otherShim := rec.BootID != k.cfg.Policy.BootID || rec.Launcher.PID != 0 && rec.Launcher.PID != view.Holder
	return otherVM || otherShim && view.Lock == watch.LockHeld && view.Holder != 0
}

// removeTrigger removes the trigger that was seen. Where that cannot be done
// it counts as spent, so that no later instance suffers from it.
func (k *keeper) removeTrigger(seen watch.FileID) {
	k.spent = seen
	dir := k.dir
	wait, done := k.dirTurn.take()
	k.worker(func(ctx context.Context) func() {
		defer done()
		if !wait(ctx) {
			return func() {}
		}
		err := dir.RemoveTrigger(seen)
		return func() {
			if err != nil {
				k.log.Warn("cannot remove the trigger; it is ignored from now on", "err", err)
			}
		}
	})
}
