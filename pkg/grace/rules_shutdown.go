package grace

import "time"

// The rules of a shutdown that is under way: first from the deadline on, then
// before it.

func overdue(r *Record, o *observation, now Mono) bool { return now >= signalAt(r, o) }

func deadline(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if !overdue(r, o, now) || r.Instance.PID == 0 || o.Term.Tries > 0 {
		return next()
	}
	return do(Terminate)
}

func destroyTimeout(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if !overdue(r, o, now) || r.Instance.PID == 0 || now < o.Term.Last.Add(p.DestroyTimeout) {
		return next()
	}
	if o.Kill.Tries > 0 && now < o.Kill.Last.Add(slowing(o.Kill.Tries)) {
		return next()
	}
	return do(Kill)
}

// slowing returns the pause after n tries that have not worked.
func slowing(n int) time.Duration {
	return min(destroyRetry<<min(n, 10), destroySlowRetry)
}

func destroyByLibvirt(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	if !overdue(r, o, now) || o.Destroy.Running {
		return next()
	}
	if at := destroyDue(r, o, now); now < at {
		return next()
	}
	return do(Destroy)
}

// destroyDue returns when libvirt's destroy is due: at once if the process is unknown or
// cannot be signalled, otherwise after the SIGKILL. An earlier destroy could cut
// --destroy-timeout short by its own SIGKILL.
func destroyDue(r *Record, o *observation, now Mono) Mono {
	switch {
	case o.Destroy.Tries > 0:
		return o.Destroy.Last.Add(slowing(o.Destroy.Tries))
	case r.Instance.PID == 0 || o.Term.Failed && !o.Term.Running:
		return now
	case o.Kill.Tries > 0:
		return o.Kill.Last.Add(destroyRetry)
	default:
		return Never
	}
}

func destroyFailed(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if !overdue(r, o, now) || o.Reported || o.Exiting || now < failedAt(r, o, p) {
		return next()
	}
	return do(ReportFailed)
}

func failedAt(r *Record, o *observation, p *Policy) Mono {
	return signalAt(r, o).Add(p.DestroyTimeout).Add(destroyFailedAfter)
}

func destroying(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if !overdue(r, o, now) {
		return next()
	}
	at := now.Add(destroySlowRetry)
	if r.Instance.PID != 0 {
		kill := o.Term.Last.Add(p.DestroyTimeout)
		if o.Kill.Tries > 0 {
			kill = o.Kill.Last.Add(slowing(o.Kill.Tries))
		}
		at = min(at, kill)
	}
	if !o.Destroy.Running {
		at = min(at, destroyDue(r, o, now))
	}
	if !o.Reported && !o.Exiting {
		at = min(at, failedAt(r, o, p))
	}
	return waitUntil(min(at, o.saveAt(), lookAgain(o, p), inspectAt(r, o, p)))
}

// untilDeadline waits for at, the deadline, or what else is due before it.
func untilDeadline(r *Record, o *observation, p *Policy, at Mono) (Decision, bool) {
	return waitUntil(min(at, r.Shutdown.Deadline, o.saveAt(), o.confirmAt(r), lookAgain(o, p), inspectAt(r, o, p)))
}

// lookAgain returns when the next look at the domain is due.
func lookAgain(o *observation, p *Policy) Mono {
	if o.Look.Running {
		return Never
	}
	return o.Look.Last.Add(p.RetryInterval)
}

func look(_ *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if o.Look.Running || o.Look.Tries > 0 && now < lookAgain(o, p) {
		return next()
	}
	return do(Look)
}

func guestOff(r *Record, o *observation, p *Policy, _ Mono) (Decision, bool) {
	hibernates := o.Power == PowerSuspended && r.Shutdown.Over == GuestOff
	if o.Power != PowerEnding && !hibernates {
		return next()
	}
	return untilDeadline(r, o, p, Never)
}

func resume(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if o.Power != PowerPaused && o.Power != PowerSuspended {
		return next()
	}
	if at := o.Resume.due(min(p.RetryInterval, destroyRetry), now); now < at {
		return untilDeadline(r, o, p, at)
	}
	return do(Resume)
}

func doNotResume(r *Record, o *observation, p *Policy, _ Mono) (Decision, bool) {
	if o.Power != PowerPausedOther {
		return next()
	}
	return untilDeadline(r, o, p, Never)
}
