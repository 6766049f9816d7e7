package grace

import "time"

// Domain is what the hypervisor shows of a domain.
type Domain struct {
	Instance Instance
	Power    Power
	// Paused is by what it is paused, in words, where Power is PowerPausedOther.
	Paused string
	Agent  bool // a guest agent has its channel open
	// Grace is the text of <deletionGracePeriodSeconds> in the domain's
	// KubeVirt metadata, "" where there is none. It is not trusted.
	Grace string
}

// A domain that has just appeared has no process that can be identified yet.
const (
	identifyTimeout = 2 * time.Second
	identifyRetry   = 200 * time.Millisecond
	// libvirt keeps a domain for a while after its QEMU has ended (9.0: 1.6 s), and then
	// sends an event. Looks before that only delay libvirt.
	leaveTimeout = time.Minute
	leaveRetry   = 2 * time.Second
)

// DomainChanged asks for a look at the domain. One that is under way may have missed the change:
// another one follows.
func (v *VM) DomainChanged() { v.obs.LookAt = 0 }

// SeeDomain takes what the hypervisor shows.
func (v *VM) SeeDomain(d Domain, now Mono) {
	o := &v.obs
	d.Instance = d.Instance.certain()
	switch {
	case o.Recorded && v.rec.Instance.PID != 0 && d.Instance.PID == 0:
		// libvirt does not know the process for the moment; the pidfd does.
		o.Power = d.Power
		return
	case !o.Recorded && !o.adoptable(&d, now):
		retry := identifyRetry
		if d.Instance.UUID == o.Former.UUID {
			retry = leaveRetry // a look delays libvirt
		}
		o.LookAt = min(o.LookAt, now.Add(retry))
		return
	}
	o.Domain, o.Instance = domainPresent, d.Instance
	if !o.Recorded || d.Instance == v.rec.Instance {
		if d.Agent && !o.Agent {
			o.AgentAt = now
		}
		o.Power, o.Paused, o.Agent = d.Power, d.Paused, d.Agent
		v.seePower(now)
	}
	o.Stated[byDomain].Read, o.Stated[byDomain].Text = true, d.Grace
	v.resolve()
	if o.Recorded && v.rec.Instance.PID == 0 && d.Instance != v.rec.Instance && !v.rec.identifiedBy(d.Instance, o.asleep(v.policy)) {
		v.ProcessGone(now)
	}
}

// asleep returns how long the node had at least been suspended when the shutdown began.
// It returns 0 for a shutdown that an earlier agent began: nobody knows.
func (o *observation) asleep(p *Policy) time.Duration {
	if o.Restored {
		return 0
	}
	return p.Asleep
}

// adoptable reports whether what was seen is an instance to guard. A domain that
// is just starting, or whose QEMU has just gone, has no process to identify.
func (o *observation) adoptable(d *Domain, now Mono) bool {
	if d.Instance.PID != 0 {
		o.UnidentifiedAt = 0
		return d.Instance != o.Former // else it is from a look before its end
	}
	if o.UnidentifiedAt == 0 {
		o.UnidentifiedAt = now
	}
	timeout := identifyTimeout
	if d.Instance.UUID == o.Former.UUID {
		timeout = leaveTimeout
	}
	return d.Power != PowerEnding && now.Sub(o.UnidentifiedAt) >= timeout
}

// DomainAbsent notes that the hypervisor has no such domain.
func (v *VM) DomainAbsent(now Mono) {
	o := &v.obs
	o.Domain, o.Power, o.Agent = domainAbsent, PowerUnknown, false
	o.Instance, o.UnidentifiedAt, o.Stated[byDomain].Read = Instance{}, 0, false
	if o.Recorded && v.rec.Instance.PID == 0 {
		v.ProcessGone(now)
	}
}

// DomainUnreadable notes a failed look. A domain that was absent may be there by now.
func (v *VM) DomainUnreadable() {
	v.obs.Power = PowerUnknown
	if v.obs.Domain == domainAbsent {
		v.obs.Domain = domainUnknown
	}
}

// DomainMissingFromList asks for a look unless the domain is known to be absent. A list
// that omits a domain proves nothing.
func (v *VM) DomainMissingFromList() {
	if v.obs.Recorded || v.obs.Domain != domainAbsent {
		v.DomainChanged()
	}
}

// Ended takes libvirt's reason for the end of the instance with this UUID. It asks for no
// look if the process is watched: a look at an ending domain only delays libvirt.
func (v *VM) Ended(end End, uuid string, now Mono) {
	o := &v.obs
	ours := o.Recorded && uuid == v.rec.Instance.UUID
	// After a migration libvirt may have destroyed the rest of it.
	if ours && (o.End == EndUnknown || end.GoesOn()) {
		o.End = end
	}
	if ours && end == EndGuest {
		v.over(GuestOff, now)
	}
	watched := ours && (o.Watched || o.Gone)
	// The end of the process was seen before libvirt's event. A look is due anyway.
	due := !o.Recorded && uuid == o.Former.UUID && o.LookAt != Never
	if !watched && !due {
		v.DomainChanged()
	}
}

// ProcessGone is called when the process of the record's instance has ended.
func (v *VM) ProcessGone(now Mono) {
	v.obs.Watched = false
	if v.obs.Recorded && !v.obs.Gone {
		v.obs.Gone, v.obs.GoneAt = true, now
	}
}

// watch opens a handle for the process of the instance.
func watch(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if !o.Recorded || o.Watched || o.Gone || r.Instance.PID == 0 || r.BootID != p.BootID || now < o.Watch.due(p.RetryInterval, now) {
		return next()
	}
	return do(Watch)
}

func lookAtDomain(_ *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	switch {
	case o.LookAt == Never || o.Look.Running:
		return next()
	case now < o.LookAt:
		return waitUntil(o.LookAt)
	default:
		return do(Look)
	}
}
