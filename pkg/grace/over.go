package grace

// Signs of an end before the agent's signal. QEMU takes up to a minute to free the memory
// of a large guest, and the deadline may pass meanwhile.

// over notes a sign of the end. From the deadline on, the signal may have caused it.
func (v *VM) over(is Over, now Mono) {
	s := &v.rec.Shutdown
	if v.obs.Gone || s.Signalled || now >= s.Deadline {
		return
	}
	v.noteOver(is, now)
}

func (v *VM) noteOver(is Over, now Mono) {
	s := &v.rec.Shutdown
	if !v.rec.ShuttingDown() || s.Over == is || s.Over == GuestOff || s.Over == Crashed {
		return
	}
	s.Over, v.obs.OverAt = is, now
	if v.obs.NotedAt == 0 {
		v.obs.NotedAt = now
	}
}

// overBefore notes that the guest was off, or had crashed, before the shutdown began.
func (v *VM) overBefore(now Mono) {
	o := &v.obs
	switch {
	case o.Gone:
	case o.Power == PowerCrashed:
		v.noteOver(Crashed, now)
	case o.End == EndGuest || o.Power == PowerEnding || o.Power == PowerOff:
		v.noteOver(GuestOff, now)
	}
	if o.Power == PowerOff || o.Power == PowerCrashed {
		o.OffAt = now
	}
}

// seePower takes the power of the record's instance.
func (v *VM) seePower(now Mono) {
	o, s := &v.obs, &v.rec.Shutdown
	switch o.Power {
	case PowerOn:
		if o.Gone {
			return
		}
		o.End = EndUnknown // the guest runs: on_poweroff=restart, or a wrong hint
		if s.Over != Exiting && !s.Signalled && o.Look.Last > o.OverAt {
			s.Over, o.OverAt, o.OffAt = "", 0, 0
		}
	case PowerEnding:
		v.over(GuestOff, now)
	case PowerOff, PowerCrashed:
		is := GuestOff
		if o.Power == PowerCrashed {
			is = Crashed
		}
		v.over(is, now)
		if v.rec.ShuttingDown() && o.OffAt == 0 {
			o.OffAt = now
		}
	default:
	}
}

// SeeProcess takes whether the process of the record's instance is exiting.
func (v *VM) SeeProcess(exiting bool, now Mono) {
	o, s := &v.obs, &v.rec.Shutdown
	o.Exiting = exiting
	switch {
	case !exiting:
	// If the deadline is now, the first look still comes before the signal: see ArmAt.
	case o.Inspect.Tries == 1 && !o.Restored && now < s.Start.Add(saveDeadlineTimeout):
		v.noteOver(Exiting, now)
	default:
		v.over(Exiting, now)
	}
}

// signalAt returns when to signal the process: at the deadline, or as soon as its guest
// is off, or has crashed, and nobody else ends it.
func signalAt(r *Record, o *observation) Mono {
	if o.OffAt != 0 {
		return min(o.OffAt, r.Shutdown.Deadline)
	}
	return r.Shutdown.Deadline
}

func inspect(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if now < inspectAt(r, o, p) {
		return next()
	}
	return do(Inspect)
}

// inspectAt returns when to look whether the process is exiting: when the shutdown
// begins, right before the signal, and before a failed end is reported.
func inspectAt(r *Record, o *observation, p *Policy) Mono {
	c := &o.Inspect
	signal, failed := signalAt(r, o).Add(-inspectAhead), failedAt(r, o, p)
	switch {
	case !r.ShuttingDown() || !o.Watched || o.Gone || p.DryRun:
		return Never
	case c.Tries == 0:
		return 0
	case r.Shutdown.Over == "" && c.Last < signal:
		return signal
	case o.Reported:
		return Never
	case c.Last < failed:
		return failed
	case o.Exiting:
		return c.Last.Add(destroySlowRetry)
	default:
		return Never
	}
}

// endOf returns why the instance ended, corrected by what was seen before the signal.
func endOf(r *Record, o *observation) End {
	if r.Shutdown.Over == Crashed {
		return EndCrashed
	}
	off := r.Shutdown.Over == GuestOff
	switch o.End {
	case EndExited:
		if !r.ShuttingDown() || r.Shutdown.Over != "" || o.GoneAt < r.Shutdown.Deadline {
			return EndGuest // no agent can have signalled it by then
		}
	case EndUnknown, EndKilled:
		if off {
			return EndGuest
		}
	case EndDestroyed:
		if r.Shutdown.Over != "" && (o.Destroy.Tries > 0 || off && r.Shutdown.Signalled) {
			return EndGuest // by our own destroy, which came later
		}
	default:
	}
	return o.End
}
