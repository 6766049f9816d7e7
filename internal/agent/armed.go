package agent

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/deadline"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// due is the deadline that the record has, Never if it has none.
func (k *keeper) due() grace.Mono {
	if !k.rec.ShuttingDown() || k.rec.BootID != k.cfg.Policy.BootID {
		return grace.Never
	}
	return k.rec.Shutdown.Deadline
}

// restore opens the process of a record that was read, and arms its deadline.
func (k *keeper) restore() {
	if k.obs.Recorded && k.rec.BootID == k.cfg.Policy.BootID {
		k.watchQEMU()
	}
}

// recovered takes over a record that could not be read at the start, unless
// what is known by now is newer, or its deadline earlier.
func (k *keeper) recovered(r grace.Record) {
	r.Instance = r.Instance.Certain()
	newer := k.obs.Recorded && r.Instance != k.rec.Instance
	earlier := k.rec.ShuttingDown() && (!r.ShuttingDown() || k.rec.Shutdown.Deadline <= r.Shutdown.Deadline)
	if newer || earlier || k.finishing {
		return
	}
	k.log.Info("the record could be read after all", "gracePeriod", r.Period.Length, "cause", r.Shutdown.Cause)
	k.rec, k.obs.Recorded, k.obs.Period = r, true, r.Period
	k.change(nil)
	k.restore()
	k.arm()
}

// arm has SIGTERM sent at the record's deadline, whatever this keeper waits
// for then. It is called whenever deadline or process may have changed.
func (k *keeper) arm() {
	due := k.due()
	switch {
	case due == grace.Never || k.cfg.Policy.DryRun || k.rec.Shutdown.DryRun || k.qemu == nil || k.obs.Term.Tries > 0:
	case k.armed != nil:
		k.armed.Move(due)
	default:
		armed, err := k.qemu.Arm(due)
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
func (k *keeper) terminate(now grace.Mono) {
	if k.armed != nil {
		k.began(&k.obs.Term)
		return
	}
	k.signal(&k.obs.Term, unix.SIGTERM, now)
}

// terminated takes over what the deadline's thread has done.
func (k *keeper) terminated(s deadline.Sent) {
	k.armed = nil
	if !k.obs.Term.Running {
		k.began(&k.obs.Term)
	}
	k.obs.Term.Last = s.At
	k.signalled(&k.obs.Term, unix.SIGTERM, s.At, s.Err)
}

func (k *keeper) sleep(until, now grace.Mono) {
	if until == grace.Never {
		k.timer.Stop()
		return
	}
	k.timer.Reset(max(until.Sub(now), time.Duration(0)))
}
