package agent

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// change notes that the record differs from what is on disk.
func (k *keeper) change(err error) {
	if err != nil {
		k.log.Error("the record does not allow this; this is a bug", "err", err)
		return
	}
	k.made++
	k.obs.Unsaved = true
}

// note notes in the record what was done. Nothing waits for it.
func (k *keeper) note(done *bool) {
	if *done {
		return
	}
	*done = true
	if k.obs.NotedAt == 0 {
		k.obs.NotedAt = k.now()
	}
}

func (k *keeper) adopt() {
	rec := grace.Record{
		Namespace: k.namespace, Name: k.name, Pod: k.obs.Pod.UID, BootID: k.cfg.Policy.BootID,
		Period: k.obs.Period, Instance: k.obs.Instance,
	}
	rec.UID, rec.VMICreated = k.obs.Owner(&rec)
	switch k.obs.Shim {
	case grace.ShimAlive:
		rec.Launcher = k.obs.Holder
	case grace.ShimDied:
		k.obs.Shim = grace.ShimOrphan // it died before this instance was there
	default:
	}
	k.rec, k.obs.Recorded = rec, true
	k.watchQEMU()
	if k.obs.Gone {
		// It ended between the look and now: nothing to guard.
		k.reset()
		return
	}
	k.obs.AdoptedAt = k.now()
	if k.obs.Trigger {
		k.obs.TriggerAt = k.obs.AdoptedAt // it waited for the domain; the grace period begins now
	}
	k.change(nil)
	k.expect()
	k.log.Info("guarding a VM", "uid", k.rec.UID, "gracePeriod", k.rec.Period.Length, "source", k.rec.Period.Source, "pid", k.rec.Instance.PID)
	if k.rec.Instance.PID == 0 {
		k.log.Warn("the domain's QEMU process cannot be identified; only libvirt can end it", "uuid", k.rec.Instance.UUID)
	}
}

// expect has a request prepared: when the VM is adopted, and again when the
// request is due, for what libvirt's restart has undone.
func (k *keeper) expect() {
	if k.cfg.Expect != nil && k.obs.Recorded && !k.cfg.Policy.DryRun {
		k.cfg.Expect(k.domain, k.rec.Instance.UUID)
	}
}

func (k *keeper) begin(d grace.Decision, now grace.Mono) {
	// In this order: a pause between the two readings must not make the deadline
	// that is shown later than the one that counts.
	wall := k.cfg.Clock.Wall()
	wall = wall.Add(-k.now().Sub(d.When))
	k.change(k.rec.Begin(d.Cause, d.When, now, wall, k.cfg.Policy.DryRun))
	k.arm() // from here on nothing keeps QEMU from its signal
	rec, dryRun := k.rec, k.cfg.Policy.DryRun
	k.later(func() {
		k.expect()
		s := rec.Shutdown
		k.log.Info("shutdown begins", "rule", d.Rule, "cause", s.Cause, "gracePeriod", rec.Period.Length,
			"source", rec.Period.Source, "deadline", s.DeadlineAt)
		if dryRun {
			k.log.Info("dry run: would ask the guest to shut down now, and destroy it at its deadline", "deadline", s.DeadlineAt)
		}
	})
}

func (k *keeper) shorten(d grace.Decision, now grace.Mono) {
	k.change(k.rec.Shorten(d.When, now))
	k.arm()
	if d.Cause == grace.LauncherDied {
		k.log.Info("the launcher died in mid-grace: the deadline is now", "rule", d.Rule)
		return
	}
	deadline := k.rec.Shutdown.DeadlineAt
	k.log.Warn("kubelet kills the launcher pod before the VM's deadline: the deadline is earlier now", "rule", d.Rule, "deadline", deadline)
	k.report(reasonShortened, true, fmt.Sprintf("the launcher pod is killed before the end of the VM's grace period of %s; the deadline is %s now",
		k.rec.Period.Length, deadline.Format(time.RFC3339)))
}

func (k *keeper) save() {
	rec, made := k.rec, k.made
	k.obs.NotedAt = 0
	wait, done := k.cacheTurn.take()
	k.began(&k.obs.Save)
	k.worker(func(ctx context.Context) func() {
		defer done()
		if !wait(ctx) {
			return func() {}
		}
		err := k.cfg.Cache.Put(rec)
		return func() {
			wasFailing := k.obs.Save.Failed
			k.ended(&k.obs.Save, err)
			switch {
			case err != nil && !wasFailing:
				k.cfg.Meter.Rejected("record_write")
				k.log.Error("cannot write the record: going on from memory; a restart of the agent would forget it", "err", err)
			case err == nil && wasFailing:
				k.log.Info("the record is on disk again")
			}
			if err != nil || made == k.made {
				k.obs.Unsaved = err != nil // whatever it was, it is missing now
			}
			k.prepare()
		}
	})
	runtime.Gosched() // to the worker, before anything is said
}

// prepare has the cache prepared for the record of a shutdown to come.
func (k *keeper) prepare() {
	if !k.obs.Recorded || k.obs.Unsaved || k.rec.ShuttingDown() {
		return
	}
	wait, done := k.cacheTurn.take()
	k.worker(func(ctx context.Context) func() {
		defer done()
		if !wait(ctx) {
			return func() {}
		}
		err := k.cfg.Cache.Prepare(k.domain)
		return func() {
			if err != nil {
				k.log.Debug("the next write of the record will take its whole time", "err", err)
			}
		}
	})
}
