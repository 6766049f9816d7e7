package grace

// What was over before the agent signalled it. Freeing the memory of a large guest
// takes QEMU up to a minute: its deadline may come meanwhile.

// over notes what is seen of the end. From the deadline on it may be the signal's work.
func (v *VM) over(is Over, now Mono) {
	s := &v.rec.Shutdown
	if v.obs.Gone || s.Signalled || now >= s.Deadline {
		return
	}
	v.noteOver(is, now)
}

func (v *VM) noteOver(is Over, now Mono) {
	s := &v.rec.Shutdown
	if !v.rec.ShuttingDown() || s.Over == is || s.Over == GuestOff {
		return
	}
	s.Over, v.obs.OverAt = is, now
	if v.obs.NotedAt == 0 {
		v.obs.NotedAt = now
	}
}

// overBefore: the shutdown has just begun of a guest that is off already.
func (v *VM) overBefore(now Mono) {
	o := &v.obs
	if !o.Gone && (o.End == EndGuest || o.Power == PowerEnding || o.Power == PowerOff) {
		v.noteOver(GuestOff, now)
	}
	if o.Power == PowerOff {
		o.OffAt = now
	}
}

// seePower takes what the domain of the record's instance is doing.
func (v *VM) seePower(now Mono) {
	o, s := &v.obs, &v.rec.Shutdown
	switch o.Power {
	case PowerOn:
		if o.Gone {
			return
		}
		o.End = EndUnknown // it goes on: on_poweroff=restart, or a hint that was wrong
		if s.Over == GuestOff && !s.Signalled && o.Look.Last > o.OverAt {
			s.Over, o.OverAt, o.OffAt = "", 0, 0
		}
	case PowerEnding:
		v.over(GuestOff, now)
	case PowerOff:
		v.over(GuestOff, now)
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
	// Of a deadline of now the first look comes before the signal: see ArmAt.
	case o.Inspect.Tries == 1 && !o.Restored && now < s.Start.Add(saveDeadlineTimeout):
		v.noteOver(Exiting, now)
	default:
		v.over(Exiting, now)
	}
}

// signalAt is when the process is to be signalled: at the deadline, or as soon as its
// guest is off and nobody else ends it.
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

// inspectAt is when to look whether the process is exiting: as the shutdown begins,
// right before the signal, and before it is reported that nothing ends it.
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

// endOf is why the instance ended, as far as it was over before it was signalled.
func endOf(r *Record, o *observation) End {
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
