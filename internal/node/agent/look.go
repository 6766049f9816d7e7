package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// lookAtDomain asks the hypervisor.
func (k *keeper) lookAtDomain(d grace.Decision, _ grace.Mono) {
	var seen hypervisor.Domain
	k.call(d, within(lookTimeout, func(ctx context.Context) (err error) {
		seen, err = k.a.cfg.Hypervisor.Get(ctx, k.domain)
		return err
	}), func(err error, _ int) {
		switch {
		case err == nil:
			k.domainSeen(seen)
		case errors.Is(err, hypervisor.ErrNotFound):
			k.vm.DomainAbsent(k.now())
		default:
			k.log.Debug("cannot look at the domain", "err", err)
			k.vm.DomainUnreadable()
		}
	})
}

func (k *keeper) domainSeen(d hypervisor.Domain) {
	k.vm.SeeDomain(d.Domain, k.now())
	k.arm() // a guest that is off has no time left
	if !k.vm.Recorded() && (d.Persistent || d.Autostart) {
		k.log.Warn("this domain is persistent or autostarted: libvirt may start it again after its shutdown; define it transient",
			"persistent", d.Persistent, "autostart", d.Autostart)
	}
}

// lookAtDirectory reads the launcher directory.
func (k *keeper) lookAtDirectory(d grace.Decision, _ grace.Mono) {
	known := 0
	if k.shim != nil {
		known = k.vm.Holder().PID
	}
	dir, recorded := k.dir, k.vm.Record().Launcher
	var view watch.View
	var shim Watched
	var seen grace.Mono
	k.call(d, func(context.Context) (err error) {
		view, err = dir.Look()
		if err == nil && view.Locked && view.Holder.PID != 0 && view.Holder.PID != known {
			view, shim, err = k.openShim(dir, view)
		}
		if view.Locked && recorded.PID != 0 && (shim != nil || view.Holder.PID != recorded.PID) {
			view.LauncherGone = k.gone(recorded)
		}
		// Taken after the look: a trigger may come during it, and its grace period must
		// not begin earlier.
		seen = k.now()
		return err
	}, func(err error, _ int) {
		switch {
		case dir != k.dir: // it is another launcher's by now
			release(k, &shim)
			k.vm.DirectoryChanged()
		case err != nil:
			k.log.Warn("cannot read the launcher directory; keeping its last known state", "err", err)
			k.vm.DirectoryUnreadable(k.now())
		default:
			k.directorySeen(view, shim, seen)
		}
	})
}

// openShim opens the lock's holder, and looks again. If the holder is still the same, the
// opened process is the right one.
func (k *keeper) openShim(dir Launcher, view watch.View) (watch.View, Watched, error) {
	p, err := k.a.cfg.Processes.Watch(view.Holder.PID)
	if err != nil && !errors.Is(err, process.ErrGone) {
		// It lives, but cannot be watched: the directory is polled instead.
		view.Holder.PID = 0
		return view, nil, nil
	}
	again, lookErr := dir.Look()
	if p != nil && (lookErr != nil || !again.Locked || again.Holder.PID != view.Holder.PID) {
		_ = p.Close() // nothing was done with it
		p = nil
		if lookErr == nil && again.Locked {
			again.Holder.PID = 0
		}
	}
	return again, p, lookErr
}

// gone reports whether the process that held the lock has ended. In doubt it returns
// false.
func (k *keeper) gone(h grace.Holder) bool {
	p, err := k.a.cfg.Processes.Watch(h.PID)
	if err != nil {
		return errors.Is(err, process.ErrGone)
	}
	defer p.Close() //nolint:errcheck // nothing was done with it
	return h.Start != 0 && p.StartTime() != 0 && p.StartTime() != h.Start
}

func (k *keeper) directorySeen(view watch.View, shim Watched, seen grace.Mono) {
	if shim != nil {
		release(k, &k.shim)
		k.shim = shim
	}
	if !view.Locked {
		release(k, &k.shim)
	}
	if k.shim != nil {
		view.Watched, view.Holder.Start = true, k.shim.StartTime()
	}
	if !k.vm.SeeDirectory(view.Directory, seen, k.now()) {
		uid, _ := k.vm.Owner()
		view.Rejected = append(view.Rejected, watch.Rejection{
			Reason: watch.ReasonVMClaim, Err: fmt.Errorf("vm.json claims the UID %.64q, the VMI has %s", view.UID, uid),
		})
	}
	k.reject(view.Rejected)
}

// reject counts each bad file once.
func (k *keeper) reject(rejected []watch.Rejection) {
	for _, r := range rejected {
		known := false
		for _, old := range k.rejected {
			known = known || old.Reason == r.Reason && old.Err.Error() == r.Err.Error()
		}
		if !known {
			k.a.cfg.Meter.Rejected(r.Reason)
			k.log.Warn("a file in the launcher directory cannot be used", "reason", r.Reason, "err", r.Err)
		}
	}
	k.rejected = rejected
}

// follow looks at another pod's launcher directory from now on.
func (k *keeper) follow(d grace.Decision, now grace.Mono) {
	pod := k.vm.Pod().UID
	k.dir, k.rejected = k.a.cfg.Launcher(k.vm.Namespace, k.vm.Name, pod), nil
	k.a.cfg.Watch(k.domain, pod)
	release(k, &k.shim)
	k.vm.Done(d, grace.Result{}, now)
}

// watchQEMU opens the process of the record's instance.
func (k *keeper) watchQEMU(d grace.Decision, now grace.Mono) {
	release(k, &k.qemu)
	i, started := k.vm.Record().Instance, k.vm.Started(d, now)
	p, err := k.a.cfg.Processes.Open(i.PID, i.Start)
	k.vm.Done(d, grace.Result{Call: started, Failed: err != nil}, k.now())
	switch {
	case errors.Is(err, process.ErrGone):
		k.instanceGone()
	case err != nil:
		k.log.Error("cannot watch the QEMU process; only libvirt can end it", "pid", i.PID, "err", err)
	default:
		k.qemu = p
		k.arm()
	}
}

// inspect looks whether QEMU is exiting.
func (k *keeper) inspect(d grace.Decision, now grace.Mono) {
	started := k.vm.Started(d, now)
	exiting := k.qemu != nil && k.qemu.Exiting()
	k.vm.Done(d, grace.Result{Call: started}, k.now())
	k.vm.SeeProcess(exiting, k.now())
	if exiting {
		k.log.Info("the QEMU process is exiting", "pid", k.vm.Record().Instance.PID)
	}
}

func (k *keeper) qemuGone() {
	release(k, &k.qemu)
	k.instanceGone()
}

func (k *keeper) instanceGone() {
	k.disarm()
	k.log.Debug("the instance is gone", "uuid", k.vm.Record().Instance.UUID, "pid", k.vm.Record().Instance.PID)
	k.vm.ProcessGone(k.now())
}
