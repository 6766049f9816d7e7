package agent

import (
	"context"
	"errors"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// A domain that has just appeared has no process that can be identified yet.
const (
	identifyPatience = 2 * time.Second
	identifyRetry    = 200 * time.Millisecond
	// libvirt keeps a domain whose QEMU is gone for a while (9.0: 1.6 s), and tells
	// when it has let go of it.
	leavePatience = time.Minute
	leaveRetry    = time.Second
)

// hear turns hints into looks.
func (k *keeper) hear(h hints) {
	if h.record != nil {
		k.recovered(*h.record)
	}
	if h.end != "" {
		k.endHeard(h.end, h.endOf)
	}
	if h.seen != nil {
		h.domain = k.listed(h.seen) || h.domain
	}
	if h.cluster {
		k.clusterSeen()
	}
	if h.launcher {
		k.look()
	}
	if h.save && k.obs.Recorded && !k.finishing {
		k.change(nil)
	}
	if h.domain {
		k.probe()
	}
}

// endHeard takes what libvirt says of an end. Where its process is watched
// the domain need not be looked at: whoever asks for one that ends keeps
// libvirt from its work.
func (k *keeper) endHeard(end grace.End, uuid string) {
	ours := k.obs.Recorded && uuid == k.rec.Instance.UUID
	if ours && k.obs.End == "" {
		k.obs.End = end
	}
	watched := ours && (k.qemu != nil || k.obs.Gone)
	// The process told of its end before libvirt did; a look is due anyway.
	done := !k.obs.Recorded && uuid == k.before.UUID && k.probeAt != grace.Never
	if !watched && !done {
		k.probe()
	}
}

// listed takes what a list says, and tells whether that has to be looked into:
// that it leaves the domain out is no proof.
func (k *keeper) listed(d *hypervisor.Domain) (look bool) {
	if *d == (hypervisor.Domain{}) {
		return k.obs.Recorded || k.obs.Domain != grace.DomainAbsent
	}
	k.domainSeen(*d)
	return false
}

// probe looks at the domain, once at a time.
func (k *keeper) probe() {
	if k.obs.Look.Running {
		return
	}
	k.began(&k.obs.Look)
	k.worker(func(ctx context.Context) func() {
		ctx, cancel := bounded(ctx, lookTimeout)
		defer cancel()
		d, err := k.cfg.Hypervisor.Get(ctx, k.domain)
		return func() {
			k.ended(&k.obs.Look, err)
			switch {
			case err == nil:
				k.domainSeen(d)
			case errors.Is(err, hypervisor.ErrNotFound):
				k.domainAbsent()
			default:
				k.log.Debug("cannot look at the domain", "err", err)
				k.obs.Power = grace.PowerUnknown
			}
		}
	})
}

func (k *keeper) domainAbsent() {
	k.obs.Domain, k.obs.Power, k.obs.Agent = grace.DomainAbsent, grace.PowerUnknown, false
	k.obs.Instance, k.unidentified = grace.Instance{}, 0
	k.metadata = grace.Statement{}
	if k.obs.Recorded && k.rec.Instance.PID == 0 {
		k.instanceGone()
	}
	k.watchAgain()
}

// watchAgain opens the process where that failed before.
func (k *keeper) watchAgain() {
	if k.obs.Recorded && !k.obs.Gone && k.qemu == nil && k.rec.BootID == k.cfg.Policy.BootID {
		k.watchQEMU()
	}
}

func (k *keeper) domainSeen(d hypervisor.Domain) {
	d.Instance = d.Instance.Certain()
	k.watchAgain()
	switch {
	case k.obs.Recorded && k.rec.Instance.PID != 0 && d.Instance.PID == 0:
		// Its process is unclear to libvirt for the moment; the pidfd is not.
		k.obs.Power = d.Power
		return
	case !k.obs.Recorded && !k.adoptable(d):
		retry := identifyRetry
		if d.Instance.UUID == k.before.UUID {
			retry = leaveRetry // asking for it keeps libvirt from its work
		}
		k.probeAt = k.now().Add(retry)
		return
	}
	k.obs.Domain, k.obs.Instance = grace.DomainPresent, d.Instance
	if !k.obs.Recorded || d.Instance == k.rec.Instance {
		k.powerSeen(d)
	}
	k.metadata = k.statement(grace.SourceDomain, d.Grace)
	k.resolve()
	switch {
	case !k.obs.Recorded && (d.Persistent || d.Autostart):
		k.log.Warn("this domain is persistent or autostarted: libvirt may start it again after its shutdown; define it transient",
			"persistent", d.Persistent, "autostart", d.Autostart)
	case k.obs.Recorded && k.rec.Instance.PID == 0 && d.Instance != k.rec.Instance && !k.rec.IdentifiedBy(d.Instance):
		k.instanceGone()
	}
}

// adoptable tells whether what was seen is an instance to guard. A domain that
// is just starting, or whose QEMU has just gone, has no process to identify.
func (k *keeper) adoptable(d hypervisor.Domain) bool {
	if d.Instance.PID != 0 {
		k.unidentified = 0
		return d.Instance != k.before // a look that was under way when it ended
	}
	if k.unidentified == 0 {
		k.unidentified = k.now()
	}
	patience := identifyPatience
	if d.Instance.UUID == k.before.UUID {
		patience = leavePatience
	}
	return d.Power != grace.PowerEnding && k.now().Sub(k.unidentified) >= patience
}

func (k *keeper) powerSeen(d hypervisor.Domain) {
	k.obs.Power, k.obs.Agent = d.Power, d.Agent
	if d.Power == grace.PowerOn && !k.obs.Gone {
		k.obs.End = grace.EndUnknown // it goes on: on_poweroff=restart, or a hint that was wrong
	}
}

// statement reads a grace period that somebody stated. What is invalid is
// logged once and counts as not stated: it is never 0.
func (k *keeper) statement(source grace.Source, text string) grace.Statement {
	s := grace.Statement{Source: source, Read: true}
	if text == "" {
		return s
	}
	length, err := grace.ParseSeconds(text)
	s.Length, s.Stated = length, err == nil || errors.Is(err, grace.ErrTooLong)
	if err != nil && k.invalid[source] != text {
		k.invalid[source] = text
		k.cfg.Meter.Rejected("grace_period")
		if s.Stated {
			k.log.Warn("the stated grace period is too long; using the longest there is", "source", source, "stated", text, "using", length)
		} else {
			k.invalidPeriod(source, text)
			k.log.Warn("the stated grace period is invalid; using the next source or --default-grace-period", "source", source, "stated", text, "err", err)
		}
	}
	return s
}

// resolve picks the grace period from what the sources say now.
func (k *keeper) resolve() {
	domain := k.metadata
	domain.Source = grace.SourceDomain
	launcher := grace.Statement{Source: grace.SourceLauncher}
	if k.view.Registered && k.view.VM.Version != 0 {
		launcher = k.statement(grace.SourceLauncher, k.view.VM.Grace)
	}
	var cached grace.Period
	if k.obs.Recorded {
		cached = k.rec.Period
	}
	k.obs.Period = grace.Resolve(cached, k.cfg.DefaultPeriod, k.vmiStatement(), domain, launcher)
}

// watchQEMU opens the process of the record's instance.
func (k *keeper) watchQEMU() {
	release(k, &k.qemu)
	i := k.rec.Instance
	if i.PID == 0 {
		return
	}
	p, err := k.cfg.Processes.Open(i.PID, i.Start)
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

func (k *keeper) qemuGone() {
	release(k, &k.qemu)
	k.instanceGone()
}

func (k *keeper) instanceGone() {
	k.disarm()
	if !k.obs.Gone {
		k.obs.Gone, k.obs.GoneAt = true, k.now()
		k.log.Debug("the instance is gone", "uuid", k.rec.Instance.UUID, "pid", k.rec.Instance.PID)
	}
}

// began and ended keep the account of one kind of call.
func (k *keeper) began(c *grace.Call) {
	c.Running, c.Last = true, k.now()
	c.Tries++
}

func (k *keeper) ended(c *grace.Call, err error) {
	c.Running, c.Failed = false, err != nil
}
