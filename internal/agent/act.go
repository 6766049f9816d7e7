package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// act carries out what was decided: here what changes the record or is reported,
// in work what calls something outside.
func (k *keeper) act(d grace.Decision, now grace.Mono) {
	switch d.Do {
	case grace.Adopt:
		k.adopt(d, now)
	case grace.Refresh:
		k.apply(d, now)
	case grace.Identify:
		k.apply(d, now)
		k.log.Info("QEMU's process is identified", "pid", k.vm.Record().Instance.PID)
	case grace.Begin:
		k.apply(d, now)
		k.arm() // from here on nothing keeps QEMU from its signal
		if k.a.cfg.Prepare != nil {
			k.a.cfg.Prepare(k.domain, k.vm.Record().Instance)
		}
	case grace.HoldShutdown:
		k.apply(d, now)
		k.log.Info("the shutdown is held", "rule", d.Rule, "cause", d.Cause, "leaving", d.Hold.Leaving, "until", k.vm.Record().Hold.UntilAt)
	case grace.Shorten:
		k.apply(d, now)
		k.arm()
		k.shortened(d)
	case grace.DropDryRun:
		k.log.Info("dropping the shutdown of a dry run; deciding anew", "rule", d.Rule)
		k.apply(d, now)
	case grace.Finish:
		k.apply(d, now)
		k.finished(d)
	case grace.Reset:
		k.reset(d, now)
	case grace.Forget:
		k.log.Info("dropping the record", "rule", d.Rule)
		k.reset(d, now)
	case grace.Announce, grace.RejectPeriod, grace.WarnOfPod, grace.ReportFailed:
		k.reportToUsers(d)
		k.vm.Handled(d)
	case grace.ClearTrigger:
		k.removeTrigger(d)
	case grace.Follow:
		k.follow(d)
	default:
		k.work(d, now)
	}
}

func (k *keeper) work(d grace.Decision, now grace.Mono) {
	switch d.Do {
	case grace.Save:
		k.save(d, now)
	case grace.Look:
		k.lookAtDomain(d)
	case grace.LookDirectory:
		k.lookAtDirectory(d)
	case grace.Watch:
		k.watchQEMU(d)
	case grace.Inspect:
		k.inspect(d)
	case grace.Ask:
		k.ask(d)
	case grace.Resume:
		k.resume(d)
	case grace.Terminate:
		k.terminate(d, now)
	case grace.Kill:
		k.signal(d, unix.SIGKILL, now)
	case grace.Destroy:
		k.destroy(d, now)
	case grace.Explain:
		k.explain(d)
	case grace.Confirm:
		k.confirm(d)
	default:
		k.conclude(d, now)
	}
}

// conclude writes status.json and finishes an instance that ended.
func (k *keeper) conclude(d grace.Decision, now grace.Mono) {
	switch d.Do {
	case grace.WriteStatus:
		k.writeStatus(d, now)
	case grace.Answer:
		k.answer(d, now)
	case grace.FlushEvents:
		k.flushEvents(d)
	case grace.Remove:
		k.removeRecord(d)
	default:
		k.log.Error("unhandled action; this is a bug", "do", d.Do)
	}
}

// apply reads the wall clock first: a pause between the two readings must not
// make the deadline that is shown later than the one that counts.
func (k *keeper) apply(d grace.Decision, now grace.Mono) {
	wall := k.a.cfg.Clock.Wall()
	wall = wall.Add(-k.now().Sub(now))
	if err := k.vm.Apply(d, now, wall); err != nil {
		k.log.Error("the record does not allow this; this is a bug", "err", err)
	}
}

func (k *keeper) adopt(d grace.Decision, now grace.Mono) {
	k.apply(d, now)
	k.restore()
	if k.vm.Gone() {
		return // it ended between the look and now
	}
	r := k.vm.Record()
	k.log.Info("guarding a VM", "uid", r.UID, "gracePeriod", r.Period.Length, "source", r.Period.Source, "pid", r.Instance.PID)
	if r.Instance.PID == 0 {
		k.log.Warn("the domain's QEMU process cannot be identified; only libvirt can end it", "uuid", r.Instance.UUID)
	}
}

func (k *keeper) ask(d grace.Decision) {
	r := k.vm.Record()
	if !r.Shutdown.Requested && k.vm.Tries(d) == 0 {
		k.a.cfg.Meter.Reacted(r.Shutdown.Cause, k.now().Sub(r.Shutdown.Start))
	}
	if k.vm.Unsaved() && k.vm.Tries(d) == 0 {
		k.log.Warn("asking the guest although its record is not on disk yet")
	}
	k.call(d, within(max(r.Shutdown.Deadline.Sub(k.now()), time.Duration(0)), func(ctx context.Context) error {
		err := k.a.cfg.Hypervisor.Ask(ctx, k.domain, r.Instance, d.Mode)
		result := "ok"
		switch {
		case errors.Is(err, hypervisor.ErrBusy):
			result = "busy"
		case err != nil:
			result = "failed"
		}
		k.a.cfg.Meter.Asked(d.Mode, result) // also where the guest was off before the answer
		return err
	}), func(err error, try int) {
		if err == nil {
			k.log.Info("asked the guest to shut down", "mode", d.Mode, "try", try)
			return
		}
		k.log.Warn("asking the guest to shut down failed", "mode", d.Mode, "try", try, "err", err)
		if errors.Is(err, hypervisor.ErrState) || errors.Is(err, hypervisor.ErrOtherInstance) || errors.Is(err, hypervisor.ErrNotFound) {
			k.vm.DomainChanged()
		}
	})
}

func (k *keeper) resume(d grace.Decision) {
	instance := k.vm.Record().Instance
	k.call(d, within(lookTimeout, func(ctx context.Context) error {
		return k.a.cfg.Hypervisor.Resume(ctx, k.domain, instance)
	}), func(err error, _ int) {
		if err != nil {
			k.log.Warn("cannot resume the guest", "err", err)
			k.vm.DomainChanged()
			return
		}
		k.log.Info("resumed the guest so that it can react to the request")
	})
}

func (k *keeper) destroy(d grace.Decision, now grace.Mono) {
	r := k.vm.Record()
	k.a.cfg.Meter.Destroyed("libvirt")
	if k.vm.NoteDestroy(now) {
		k.a.cfg.Meter.Overshot(now.Sub(r.Shutdown.Deadline))
	}
	k.call(d, within(destroyTimeout, func(ctx context.Context) error {
		return k.a.cfg.Hypervisor.Destroy(ctx, k.domain, r.Instance)
	}), func(err error, _ int) {
		if err != nil {
			k.log.Warn("libvirt's destroy failed; looking at what became of the domain", "err", err)
		}
		k.vm.DomainChanged()
	})
}

func (k *keeper) explain(d grace.Decision) {
	instance, end := k.vm.Record().Instance, grace.EndUnknown
	k.call(d, within(lookTimeout, func(ctx context.Context) (err error) {
		end, err = k.a.cfg.Hypervisor.Ended(ctx, k.domain, instance)
		return err
	}), func(error, int) { k.vm.Explained(end) })
}
