package agent

import (
	"context"
	"errors"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// actions maps actions to the keeper's methods.
var actions = map[grace.Action]func(*keeper, grace.Decision, grace.Mono){
	// Changes of the record:
	grace.Adopt: (*keeper).adopt, grace.Refresh: (*keeper).apply, grace.Identify: (*keeper).identify,
	grace.Begin: (*keeper).begin, grace.HoldShutdown: (*keeper).hold, grace.Shorten: (*keeper).shorten,
	grace.DropDryRun: (*keeper).dropDryRun, grace.Finish: (*keeper).finish, grace.Reset: (*keeper).reset, grace.Forget: (*keeper).forget,
	// Reports:
	grace.Announce: (*keeper).announce, grace.RejectPeriod: (*keeper).invalidPeriod, grace.WarnOfPod: (*keeper).warnOfPod,
	grace.WarnOfSave:   (*keeper).warnOfSave,
	grace.ReportFailed: (*keeper).destroyFailed,
	// Calls to the outside:
	grace.Follow: (*keeper).follow, grace.Look: (*keeper).lookAtDomain, grace.LookDirectory: (*keeper).lookAtDirectory,
	grace.Watch: (*keeper).watchQEMU, grace.Inspect: (*keeper).inspect, grace.Save: (*keeper).save, grace.Ask: (*keeper).ask,
	grace.Resume: (*keeper).resume, grace.Terminate: (*keeper).terminate, grace.Kill: (*keeper).kill, grace.Destroy: (*keeper).destroy,
	grace.Explain: (*keeper).explain, grace.Confirm: (*keeper).confirm, grace.WriteStatus: (*keeper).writeStatus,
	grace.Answer: (*keeper).answer, grace.FlushEvents: (*keeper).flushEvents, grace.Remove: (*keeper).removeRecord,
	grace.ClearTrigger: (*keeper).removeTrigger,
}

// apply reads the wall clock first. A pause between the two readings must not make the
// shown deadline later than the real one.
func (k *keeper) apply(d grace.Decision, now grace.Mono) {
	wall := k.a.cfg.Clock.Wall()
	k.vm.Done(d, grace.Result{Wall: wall.Add(-k.now().Sub(now))}, now)
}

func (k *keeper) identify(d grace.Decision, now grace.Mono) {
	k.apply(d, now)
	k.log.Info("QEMU's process is identified", "pid", k.vm.Record().Instance.PID)
}

func (k *keeper) begin(d grace.Decision, now grace.Mono) {
	k.apply(d, now)
	k.arm() // from here on nothing keeps QEMU from its signal
}

func (k *keeper) hold(d grace.Decision, now grace.Mono) {
	k.apply(d, now)
	k.log.Info("the shutdown is held", "rule", d.Rule, "cause", d.Cause, "leaving", d.Hold.Leaving, "until", k.vm.Record().Hold.UntilAt)
}

func (k *keeper) dropDryRun(d grace.Decision, now grace.Mono) {
	k.log.Info("dropping the shutdown of a dry run; deciding anew", "rule", d.Rule)
	k.apply(d, now)
}

func (k *keeper) forget(d grace.Decision, now grace.Mono) {
	k.log.Info("dropping the record", "rule", d.Rule)
	k.reset(d, now)
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

func (k *keeper) ask(d grace.Decision, _ grace.Mono) {
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

func (k *keeper) resume(d grace.Decision, _ grace.Mono) {
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
	before := k.vm.Record()
	k.a.cfg.Meter.Destroyed("libvirt")
	k.call(d, within(destroyTimeout, func(ctx context.Context) error {
		return k.a.cfg.Hypervisor.Destroy(ctx, k.domain, before.Instance)
	}), func(err error, _ int) {
		if err != nil {
			k.log.Warn("libvirt's destroy failed; looking at what became of the domain", "err", err)
		}
		k.vm.DomainChanged()
	})
	if s := k.vm.Record().Shutdown; s.Signalled && !before.Shutdown.Signalled {
		k.a.cfg.Meter.Overshot(now.Sub(s.Deadline))
	}
}

func (k *keeper) explain(d grace.Decision, _ grace.Mono) {
	instance, end := k.vm.Record().Instance, grace.EndUnknown
	k.call(d, within(lookTimeout, func(ctx context.Context) (err error) {
		end, err = k.a.cfg.Hypervisor.Ended(ctx, k.domain, instance)
		return err
	}), func(error, int) { k.vm.SeeEnd(end) })
}
