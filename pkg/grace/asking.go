package grace

import (
	"cmp"
	"time"
)

// Requests to the guest, and what comes of them.

func askAgent(_ *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if now < o.agentDue(p) {
		return next()
	}
	return Decision{Do: Ask, Mode: ModeAgent}, true
}

// agentDue returns when the guest's agent is to be asked: at once when it has connected, and each
// retry interval after a request that failed. One that was accepted is not repeated: the agent
// is among the first that a shutdown ends.
func (o *observation) agentDue(p *Policy) Mono {
	c := &o.AskAgent
	switch {
	case !p.UseAgent || !o.Agent || c.Running:
		return Never
	case c.Tries == 0:
		return 0
	case o.AgentAt > c.Last:
		return c.Last.Add(min(p.RetryInterval, failedRetry))
	case c.Failed:
		return c.Last.Add(p.RetryInterval)
	default:
		return Never
	}
}

// agentAnswers delays ACPI: by AgentTimeout while the agent's call runs, and by
// RetryInterval after one that worked.
func agentAnswers(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if o.AskAgent.Tries == 0 || o.AskACPI.Tries > 0 || o.AskAgent.Failed && !o.AskAgent.Running {
		return next()
	}
	over := o.AskAgent.Last.Add(p.RetryInterval)
	if o.AskAgent.Running {
		over = o.AskAgent.Last.Add(p.AgentTimeout)
	}
	// Half of the grace period stays for ACPI, even if this node's agent is restarted and
	// begins to wait again.
	if over = min(over, r.Shutdown.half()); now >= over {
		return next()
	}
	return untilDeadline(r, o, p, min(over, o.agentDue(p)))
}

func ask(_ *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	if now < o.AskACPI.due(p.RetryInterval, now) {
		return next()
	}
	return Decision{Do: Ask, Mode: ModeACPI}, true
}

func waiting(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	return untilDeadline(r, o, p, min(o.AskACPI.due(p.RetryInterval, now), o.agentDue(p)))
}

// half returns when half of the grace period is over.
func (s *Shutdown) half() Mono { return s.Start.Add(s.Deadline.Sub(s.Start) / 2) }

// answered takes the result of a request.
func (v *VM) answered(d Decision, res Result, now Mono) {
	o := &v.obs
	switch {
	case !res.Failed:
		v.note(Ask, now)
		if d.Mode == ModeAgent {
			o.Refused = ""
		}
	case res.Refused != "": // the first words stay: a guest that changes them costs nothing
		o.Refused = cmp.Or(o.Refused, res.Refused)
	}
}

// unheard returns why a guest has not shut down so far, "" if there is nothing to say. Many guests
// need a while: none is called silent in the first half of its grace period.
func unheard(r *Record, o *observation, now Mono) string {
	switch {
	case o.Power == PowerPausedOther:
		return "not asked: paused (" + cmp.Or(o.Paused, "nobody says by what") + ")"
	case o.Refused != "":
		return "refused by the guest: " + o.Refused
	case o.AskACPI.Tries+o.AskAgent.Tries == 0 || now < r.Shutdown.half():
		return ""
	case r.Shutdown.Requested:
		return "silent: asked, and not off yet"
	default:
		return "not asked: no request could be made"
	}
}

// PausedBySave is Domain.Paused while a VM is being saved.
const PausedBySave = "save"

// saveLead is how long before the deadline a save that it cuts is reported, at most.
const saveLead = time.Minute

func saveCut(r *Record, o *observation, p *Policy, now Mono) (Decision, bool) {
	s := &r.Shutdown
	saving := o.Power == PowerPausedOther && o.Paused == PausedBySave
	if !r.ShuttingDown() || !saving || o.SaveWarned || o.Gone || p.DryRun || now >= s.Deadline {
		return next()
	}
	if at := max(s.half(), s.Deadline.Add(-saveLead)); now < at {
		return waitUntil(at)
	}
	return do(WarnOfSave)
}
