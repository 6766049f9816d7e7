package agent

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// act does what was decided: here what changes the record, in work what
// reaches something outside.
func (k *keeper) act(d grace.Decision, now grace.Mono) {
	switch d.Do {
	case grace.Adopt:
		k.adopt()
	case grace.Refresh:
		k.change(k.rec.Refresh(&k.obs, now))
	case grace.Identify:
		k.change(k.rec.Identify(k.obs.Instance, now))
		k.log.Info("QEMU's process is identified", "pid", k.rec.Instance.PID)
		k.watchQEMU()
	case grace.Begin:
		k.begin(d, now)
	case grace.Shorten:
		k.shorten(d, now)
	case grace.Leave:
		k.log.Info("that shutdown was a dry run's; starting over", "rule", d.Rule)
		k.change(k.rec.Leave(now))
	case grace.ReportFailed:
		k.obs.Reported = true
		k.report(reasonDestroyFailed, true, "QEMU survives SIGTERM, SIGKILL and libvirt's destroy; trying on")
		k.cfg.Meter.Destroyed("failed")
		k.log.Error("QEMU cannot be killed (a process in D state?); trying on, slowly", "rule", d.Rule, "pid", k.rec.Instance.PID)
	case grace.Finish:
		k.finish(d, now)
	case grace.Forget:
		k.log.Info("dropping the record", "rule", d.Rule)
		k.letGo(nil)
	case grace.ClearTrigger:
		k.log.Info("removing a trigger whose shim is gone", "rule", d.Rule)
		k.cfg.Meter.Rejected("trigger_orphan")
		k.obs.Trigger = false
		k.removeTrigger(k.trigger)
	default:
		k.work(d, now)
	}
	k.publish()
}

func (k *keeper) work(d grace.Decision, now grace.Mono) {
	switch d.Do {
	case grace.Save:
		k.save()
	case grace.Look:
		k.probe()
	case grace.Ask:
		k.ask(d.Mode)
	case grace.Resume:
		k.resume()
	case grace.Terminate:
		k.terminate(now)
	case grace.Kill:
		k.signal(&k.obs.Kill, unix.SIGKILL, now)
	case grace.Destroy:
		k.destroy(now)
	case grace.Explain:
		k.explain()
	case grace.Confirm:
		k.confirm()
	default:
		k.log.Error("nobody does this; this is a bug", "do", d.Do)
	}
}

func (k *keeper) ask(mode grace.Mode) {
	account := &k.obs.AskACPI
	if mode == grace.ModeAgent {
		account = &k.obs.AskVM
	}
	first := account.Tries == 0
	if first && !k.rec.Shutdown.Requested {
		k.cfg.Meter.Reacted(k.rec.Shutdown.Cause, k.now().Sub(k.rec.Shutdown.Start))
	}
	if k.obs.Unsaved && first {
		k.log.Warn("asking the guest although its record is not on disk yet")
	}
	instance, limit := k.rec.Instance, max(k.rec.Shutdown.Deadline.Sub(k.now()), 0)
	k.call(account, limit, func(ctx context.Context) error {
		err := k.cfg.Hypervisor.Ask(ctx, k.domain, instance, mode)
		result := "ok"
		if err != nil {
			result = "failed"
		}
		k.cfg.Meter.Asked(mode, result) // also where the guest was off before the answer
		return err
	}, func(err error) { k.asked(mode, account.Tries, err) })
	runtime.Gosched() // to the worker: the guest hears of it before anybody else
}

func (k *keeper) asked(mode grace.Mode, try int, err error) {
	if err == nil {
		k.log.Info("asked the guest to shut down", "mode", mode, "try", try)
		k.note(&k.rec.Shutdown.Requested)
		return
	}
	k.log.Warn("asking the guest to shut down failed", "mode", mode, "try", try, "err", err)
	if errors.Is(err, hypervisor.ErrState) || errors.Is(err, hypervisor.ErrOtherInstance) || errors.Is(err, hypervisor.ErrNotFound) {
		k.probe()
	}
}

func (k *keeper) resume() {
	instance, power := k.rec.Instance, k.obs.Power
	k.call(&k.obs.Resume, lookTimeout, func(ctx context.Context) error {
		return k.cfg.Hypervisor.Resume(ctx, k.domain, instance)
	}, func(err error) {
		if err != nil {
			k.log.Warn("cannot resume the guest", "power", power, "err", err)
			k.probe()
			return
		}
		k.log.Info("resumed the guest so that it can hear the request", "power", power)
		k.obs.Power = grace.PowerOn
	})
}

// signal signals QEMU from the keeper: SIGKILL, and SIGTERM where none could
// be armed.
func (k *keeper) signal(account *grace.Call, s unix.Signal, now grace.Mono) {
	k.began(account)
	err := errNotWatched
	k.watchAgain()
	if k.qemu != nil {
		err = k.qemu.Signal(s)
	}
	k.signalled(account, s, now, err)
}

// signalled accounts for a signal that was sent at a time, or could not be.
func (k *keeper) signalled(account *grace.Call, s unix.Signal, at grace.Mono, err error) {
	k.ended(account, err)
	switch {
	case errors.Is(err, process.ErrGone):
		k.instanceGone()
		return
	case err != nil:
		k.log.Error("cannot signal QEMU", "signal", unix.SignalName(s), "pid", k.rec.Instance.PID, "err", err)
		return
	}
	k.forced("signal", at)
	log := k.log.With("signal", unix.SignalName(s), "pid", k.rec.Instance.PID, "afterDeadline", at.Sub(k.rec.Shutdown.Deadline))
	if account.Tries == 1 {
		log.Info("the guest is destroyed")
	} else {
		log.Info("the guest is still there; signalled again")
	}
}

var errNotWatched = errors.New("the process is not watched")

// forced notes that the agent, not the guest, ends this instance.
func (k *keeper) forced(via string, now grace.Mono) {
	k.cfg.Meter.Destroyed(via)
	if !k.rec.Shutdown.Signalled {
		k.cfg.Meter.Overshot(now.Sub(k.rec.Shutdown.Deadline))
		k.note(&k.rec.Shutdown.Signalled)
	}
}

func (k *keeper) destroy(now grace.Mono) {
	instance := k.rec.Instance
	if instance.PID == 0 {
		k.forced("libvirt", now)
	} else {
		k.cfg.Meter.Destroyed("libvirt")
	}
	k.call(&k.obs.Destroy, destroyTimeout, func(ctx context.Context) error {
		return k.cfg.Hypervisor.Destroy(ctx, k.domain, instance)
	}, func(err error) {
		if err != nil {
			k.log.Warn("libvirt's destroy failed; looking at what became of the domain", "err", err)
		}
		k.probe()
	})
}

func (k *keeper) explain() {
	instance, end := k.rec.Instance, grace.EndUnknown
	k.call(&k.obs.Explain, lookTimeout, func(ctx context.Context) (err error) {
		end, err = k.cfg.Hypervisor.Ended(ctx, k.domain, instance)
		return err
	}, func(error) {
		if k.obs.End == grace.EndUnknown {
			k.obs.End = end
		}
	})
}
