package grace

import "time"

// core is what an agent does with the core, without doing anything: it sees
// the truth of the stage and keeps record and observation.
type core struct {
	s    *stage
	rec  Record
	obs  Observation
	shim int // the one that was alive beside this instance
	seen int // the trigger
}

func (s *stage) start() {
	s.down = false
	s.agent = &core{s: s}
	if s.disk != nil {
		s.agent.rec, s.agent.obs.Recorded, s.agent.obs.Period, s.agent.obs.Pod.UID = *s.disk, true, s.disk.Period, s.disk.Pod
		s.agent.shim = s.disk.Launcher.PID
	}
	s.see()
}

// restart is for what is given: nothing has happened yet.
func (s *stage) restart() { s.start() }

func (c *core) next(now Mono) Decision { return Decide(&c.rec, &c.obs, &c.s.policy, now) }

// see has the agent look at everything.
func (s *stage) see() {
	if s.down {
		return
	}
	c, o, l := s.agent, &s.agent.obs, &s.launcher
	o.Looked, o.Ours, o.UID = true, l.dir, l.uid
	o.Pod = Pod{UID: s.pod, Deleting: s.podKill != Never, KillAt: s.podKill, DeletionGrace: time.Hour}
	if s.cluster {
		o.SeeVMI(&c.rec, s.vmi)
	}
	if l.dir || s.cluster {
		o.Period = s.grace
	}
	holder := Holder{PID: l.shim, Start: 1, File: uint64(l.shim)}
	switch {
	case l.shim == 0:
		o.Shim, o.Holder = ShimNone, Holder{}
	case l.alive:
		o.Shim, o.Holder = ShimAlive, holder
	case o.Recorded && c.rec.Launcher == holder || !o.Recorded && o.Holder == holder:
		if o.Shim != ShimDied {
			o.Shim, o.DiedAt = ShimDied, s.now
		}
	default:
		o.Shim = ShimOrphan
	}
	if l.trigger && l.triggerUID != "" && l.triggerUID != l.uid && l.uid != "" {
		s.say("-", "remove a trigger that names %q", l.triggerUID)
		l.trigger = false
	}
	counts := l.trigger && (l.triggerUID == "" || l.triggerUID == l.uid)
	if counts && !o.Trigger {
		o.TriggerAt = s.now
	}
	o.Trigger, o.TriggerByShim = counts, l.triggerUID != ""
	switch there := s.instance != (Instance{}) && !s.ended; {
	case there:
		o.Domain, o.Instance, o.Agent, o.Power = DomainPresent, s.instance, s.guestAgent != "", s.power
	default:
		o.Domain, o.Instance, o.Power = DomainAbsent, Instance{}, PowerUnknown
	}
	if o.Recorded && !o.Gone && c.rec.BootID == s.policy.BootID && (s.ended || s.instance != c.rec.Instance && !c.rec.IdentifiedBy(s.instance)) {
		o.Gone, o.GoneAt = true, s.now
	}
}

func (c *core) adopt(now Mono) {
	c.rec = Record{Namespace: "ns", Name: "vm", Pod: c.obs.Pod.UID, BootID: c.s.policy.BootID, Period: c.obs.Period, Instance: c.obs.Instance}
	c.rec.UID, c.rec.VMICreated = c.obs.Owner(&c.rec)
	switch c.obs.Shim {
	case ShimAlive:
		c.rec.Launcher = c.obs.Holder
	case ShimDied:
		c.obs.Shim = ShimOrphan
	}
	c.obs.Recorded, c.obs.AdoptedAt, c.obs.Unsaved = true, now, true
	if c.obs.Trigger {
		c.obs.TriggerAt = now
	}
}

func (s *stage) letGo() {
	c := s.agent
	s.disk = nil
	c.rec, c.obs = Record{}, c.obs.Next()
	s.see()
}

func (s *stage) confirm() {
	c := s.agent
	uid, _ := c.obs.Identity(&c.rec)
	fate, failed := s.answer, s.apiDown
	s.call(&c.obs.Confirm, &failed, 100*1e6, func() {
		if failed {
			s.say(".", "the API server cannot be reached")
			return
		}
		s.say(".", "the API server says of %s: %s", uid, fate)
		c.obs.Became(&c.rec, uid, fate, s.now)
	})
}
