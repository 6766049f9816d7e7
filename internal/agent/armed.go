package agent

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/deadline"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// restore opens the process of a record that was read, and arms its deadline.
func (k *keeper) restore() {
	if r := k.vm.Record(); k.vm.Recorded() && r.BootID == k.a.cfg.Policy.BootID && r.Instance.PID != 0 && k.qemu == nil {
		k.watchQEMU(grace.Decision{Do: grace.Watch})
	}
	k.arm()
}

// arm has SIGTERM sent at the record's deadline, whatever this keeper waits
// for then. It is called whenever the deadline, the process or what is durable
// may have changed.
func (k *keeper) arm() {
	at := k.vm.ArmAt(k.now())
	switch {
	case at == grace.Never || k.qemu == nil:
	case k.armed != nil:
		k.armed.Move(at)
	default:
		armed, err := k.qemu.Arm(at)
		if err != nil {
			k.log.Error("cannot arm the deadline; the signal is sent from the agent's own loop", "err", err)
			return
		}
		k.armed = armed
	}
}

// disarm is called once the process has ended or is nothing to this keeper.
func (k *keeper) disarm() {
	armed := k.armed
	k.armed = nil
	if armed != nil && !armed.Disarm() {
		k.terminated(<-armed.Sent()) // which is there at once
	}
}

// sent is where the armed signal is reported.
func (k *keeper) sent() <-chan deadline.Sent {
	if k.armed == nil {
		return nil
	}
	return k.armed.Sent()
}

// terminate is due at the deadline. An armed signal is on its way already.
func (k *keeper) terminate(d grace.Decision, now grace.Mono) {
	if k.armed != nil {
		k.vm.Started(d, now)
		return
	}
	k.signal(d, unix.SIGTERM, now)
}

// terminated takes over what the deadline's thread has done.
func (k *keeper) terminated(s deadline.Sent) {
	k.armed = nil
	k.signalled(grace.Decision{Do: grace.Terminate}, unix.SIGTERM, s.At, s.Err)
}

var errNotWatched = errors.New("the process is not watched")

// signal signals QEMU from the keeper: SIGKILL, and SIGTERM where none could
// be armed.
func (k *keeper) signal(d grace.Decision, s unix.Signal, now grace.Mono) {
	if k.qemu == nil {
		k.watchQEMU(grace.Decision{Do: grace.Watch})
	}
	err := errNotWatched
	if k.vm.Gone() {
		return
	}
	if k.qemu != nil {
		err = k.qemu.Signal(s)
	}
	k.signalled(d, s, now, err)
}

// signalled accounts for a signal that was sent at a time, or could not be.
func (k *keeper) signalled(d grace.Decision, s unix.Signal, at grace.Mono, err error) {
	due, pid := k.vm.Record().Shutdown.Deadline, k.vm.Record().Instance.PID
	first := k.vm.Signalled(d, at, err)
	switch {
	case errors.Is(err, process.ErrGone):
		k.instanceGone()
		return
	case err != nil:
		k.log.Error("cannot signal QEMU", "signal", unix.SignalName(s), "pid", pid, "err", err)
		return
	}
	if at < due {
		k.log.Info("the guest is off: its process is ended", "signal", unix.SignalName(s), "pid", pid)
		return
	}
	k.a.cfg.Meter.Destroyed("signal")
	log := k.log.With("signal", unix.SignalName(s), "pid", pid, "afterDeadline", at.Sub(due))
	if first {
		k.a.cfg.Meter.Overshot(at.Sub(due))
		log.Info("the guest is destroyed")
	} else {
		log.Info("the guest is still there; signalled again")
	}
}

func (k *keeper) sleep(until, now grace.Mono) {
	if until == grace.Never {
		k.timer.Stop()
		return
	}
	k.timer.Reset(max(until.Sub(now), time.Duration(0)))
}
