package agent

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/deadline"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// restore opens the process of a record that was read, and arms its deadline.
func (k *keeper) restore() {
	if r := k.vm.Record(); k.vm.Recorded() && r.BootID == k.a.cfg.Policy.BootID && r.Instance.PID != 0 && k.qemu == nil {
		k.watchQEMU(grace.Decision{Do: grace.Watch}, k.now())
	}
	k.arm()
}

// arm makes the deadline thread send SIGTERM at the record's deadline, even if this
// keeper is blocked then. It is called whenever the deadline, the process or what is
// durable may have changed.
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

// disarm cancels the signal once the process has ended or does not concern this keeper
// any more.
func (k *keeper) disarm() {
	armed := k.armed
	k.armed = nil
	if armed != nil && !armed.Disarm() {
		k.terminated(<-armed.Sent()) // it is there at once
	}
}

// sent returns the channel that reports the armed signal.
func (k *keeper) sent() <-chan deadline.Sent {
	if k.armed == nil {
		return nil
	}
	return k.armed.Sent()
}

// terminate runs at the deadline. An armed signal is on its way already.
func (k *keeper) terminate(d grace.Decision, now grace.Mono) {
	if k.armed != nil {
		k.vm.Started(d, now)
		return
	}
	k.signal(d, unix.SIGTERM, now)
}

func (k *keeper) kill(d grace.Decision, now grace.Mono) { k.signal(d, unix.SIGKILL, now) }

// terminated takes the result of the deadline thread's signal.
func (k *keeper) terminated(s deadline.Sent) {
	k.armed = nil
	k.signalled(grace.Decision{Do: grace.Terminate}, unix.SIGTERM, s.At, s.Err)
}

var errNotWatched = errors.New("the process is not watched")

// signal signals QEMU from the keeper: SIGKILL, and SIGTERM if none could be armed.
func (k *keeper) signal(d grace.Decision, s unix.Signal, now grace.Mono) {
	if k.qemu == nil {
		k.watchQEMU(grace.Decision{Do: grace.Watch}, now)
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

// signalled notes a signal that was sent at a time, or that failed.
func (k *keeper) signalled(d grace.Decision, s unix.Signal, at grace.Mono, err error) {
	before := k.vm.Record()
	due, pid := before.Shutdown.Deadline, before.Instance.PID
	k.vm.Done(d, grace.Result{Failed: err != nil}, at)
	switch {
	case errors.Is(err, process.ErrGone):
		k.instanceGone()
		return
	case err != nil:
		k.log.Error("cannot signal QEMU", "signal", unix.SignalName(s), "pid", pid, "err", err)
		return
	}
	if at < due {
		k.log.Info("the guest ends no more by itself: its process is ended", "guest", before.Shutdown.Over, "signal", unix.SignalName(s), "pid", pid)
		return
	}
	k.a.cfg.Meter.Destroyed("signal")
	log := k.log.With("signal", unix.SignalName(s), "pid", pid, "afterDeadline", at.Sub(due))
	if !before.Shutdown.Signalled && k.vm.Record().Shutdown.Signalled {
		k.a.cfg.Meter.Overshot(at.Sub(due))
		log.Info("the guest is destroyed")
	} else {
		log.Info("the guest is still there; signalled again")
	}
}

// armedSlack is how long the keeper waits after an armed deadline. Until then the
// deadline thread has to send, and wakes the keeper. Keepers that woke at the deadline
// would take the thread's processor if it has no real-time priority.
const armedSlack = 100 * time.Millisecond

func (k *keeper) sleep(until, now grace.Mono) {
	if k.armed != nil && until == k.vm.ArmAt(now) {
		until = until.Add(armedSlack)
	}
	if until == grace.Never {
		k.timer.Stop()
		return
	}
	k.timer.Reset(max(until.Sub(now), time.Duration(0)))
}
