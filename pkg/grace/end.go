package grace

import (
	"fmt"
	"time"
)

// Tries and pauses if a write of status.json, or a removal, fails.
const (
	statusRetry = 5 * time.Second
	answerTries = 6 // of the last one
	answerRetry = 200 * time.Millisecond
	removeRetry = time.Second
)

// Ending is the end of a VM, as it is reported before its record is removed.
type Ending struct {
	Cause   Cause // "" if there was no shutdown
	Outcome Outcome
	End     End // how a Lost one ended
	Took    time.Duration
	EndedAt time.Time
	Message string
	// Kept means that the trigger in the launcher directory is for an instance that is
	// still to come.
	Kept bool
}

// Status is the content of status.json, which tells a launcher about its VM. Fields that
// do not apply are zero. Times are shown to the millisecond.
type Status struct {
	UID       string
	Phase     Phase
	Cause     Cause
	StartedAt time.Time
	Deadline  time.Time
	Outcome   Outcome
	End       End // how a Lost one ended
	EndedAt   time.Time
	Message   string
	// Request numbers the last request to shut down the guest, for a launcher that does
	// that itself. The numbers grow; 0 is none. RequestBy is ModeAgent if its guest's agent is to be
	// asked. The core makes none.
	Request   uint64
	RequestBy Mode
	// Migration is a request about a migration, for the same launcher.
	Migration MoveRequest
}

// Status returns what to tell a launcher now.
func (v *VM) Status(now Mono) Status { return status(&v.rec, &v.obs, now) }

func status(r *Record, o *observation, now Mono) Status {
	shown := r.Shown()
	s := Status{
		UID: launcherUID(r, o), Phase: r.Phase(now), Cause: shown.Cause,
		StartedAt: shown.StartedAt, Deadline: shown.DeadlineAt,
	}
	if s.Phase == Held {
		s.Message = "the guest was not asked yet: the VM may be moved until then"
	}
	switch e := o.Ending; {
	case e != nil:
		s.Phase, s.Cause, s.Outcome, s.End, s.EndedAt, s.Message = Stopped, e.Cause, e.Outcome, e.End, e.EndedAt, e.Message
	case r.Shutdown.DryRun:
		s.Message = "dry run: nothing is done"
	case r.ShuttingDown():
		s.Message = unheard(r, o, now)
	}
	return s
}

// Ending returns the end that is being reported, nil if there is none.
func (v *VM) Ending() *Ending { return v.obs.Ending }

// endMessage returns what to add to an outcome.
func endMessage(outcome Outcome, r *Record, o *observation) string {
	switch {
	case outcome == Forced:
		return o.Unheard
	case outcome != Lost:
		return ""
	case r.Shutdown.Over == Crashed:
		return "the guest had crashed (panicked): it hears nothing, and its process was ended at once"
	case o.End == EndUnknown:
		return "the VM is gone; libvirt does not say why"
	case o.End == EndExited:
		return "the VM is gone since its deadline; no log says who ended it"
	default:
		return fmt.Sprintf("the VM was %s", o.End)
	}
}

func (v *VM) finish(d Decision, now Mono, wall time.Time) {
	e := Ending{Cause: d.Cause, Outcome: d.Outcome, EndedAt: wall.UTC(), Message: endMessage(d.Outcome, &v.rec, &v.obs)}
	if e.Outcome == Lost {
		e.End = endOf(&v.rec, &v.obs)
	}
	if e.End == EndSaved && e.Cause == "" {
		e.Message += ": its launcher waits for its return"
	}
	if shown := v.rec.Shown(); shown.Cause != "" {
		e.Took = now.Sub(shown.Start)
	}
	// No domain has come yet, but a launcher that lives may still start one.
	e.Kept = !v.obs.Recorded && v.obs.Shim == shimAlive
	v.obs.Ending = &e
}

// reset prepares for the next instance. An answer has consumed the trigger; without one
// it stays.
func (v *VM) reset(now Mono) {
	over, ended, recorded := v.obs.Ending, v.obs.Gone, v.obs.Recorded
	v.obs = v.obs.next(&v.rec, v.policy)
	v.rec = Record{}
	v.instances++
	kept := over != nil && over.Kept
	v.obs.Told = kept && !recorded
	if over != nil && !kept {
		v.obs.Consumed, v.obs.Trigger = v.obs.TriggerID, false
	}
	if v.obs.Dir.Registered {
		v.seeShim(&v.obs.Dir, now) // a launcher that replaced the last one is the next instance's
	}
	if ended && !kept { // else the next instance may be there
		v.obs.LookAt = now.Add(leaveRetry) // unless an event comes first
	}
	v.choosePod()
	v.resolve()
}

// The rules of an end: each step may be done twice after a crash.

func answer(_ *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	c := &o.Answer
	switch {
	case o.Ending == nil || c.Tries > 0 && !c.Running && (!c.Failed || c.Tries >= answerTries):
		return next()
	case c.Running:
		return waitUntil(Never)
	case c.Tries > 0 && now < c.Last.Add(answerRetry):
		return waitUntil(c.Last.Add(answerRetry))
	default:
		return do(Answer)
	}
}

func flushEvents(_ *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	switch {
	case o.Ending == nil || o.FlushEvents.Tries > 0 && !o.FlushEvents.Running:
		return next()
	case o.FlushEvents.Running:
		return waitUntil(Never)
	default:
		return do(FlushEvents)
	}
}

func reset(_ *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if o.Ending == nil {
		return next()
	}
	return do(Reset)
}

func removeRecord(_ *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	c := &o.Remove
	switch {
	case !o.StaleRecord || c.Running:
		return next()
	case c.Tries > 0 && now < c.Last.Add(removeRetry):
		return waitUntil(c.Last.Add(removeRetry))
	default:
		return do(Remove)
	}
}

// afterAsk is how long status.json waits at most for the guest to be asked.
const afterAsk = 100 * time.Millisecond

// publishAt returns when users may see the record: once it is saved or its save fails or
// is slow, and the guest was asked.
func (o *observation) publishAt() Mono {
	at := Mono(0)
	switch {
	case !o.Recorded || o.Ending != nil || o.Unsaved && o.Save.Tries == 0:
		return Never
	case o.Unsaved && !o.Save.Failed:
		at = o.Save.Last.Add(saveTimeout)
	}
	for _, c := range [...]*Call{&o.AskACPI, &o.AskAgent} {
		if c.Running {
			at = max(at, c.Last.Add(afterAsk))
		}
	}
	return at
}

func announce(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	held := !r.ShuttingDown() && r.Hold.Reason != ""
	if o.Announced || !r.ShuttingDown() && (!held || o.HoldAnnounced) {
		return next()
	}
	if at := o.publishAt(); now < at {
		return waitUntil(at)
	}
	return do(Announce)
}

func writeStatus(r *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	c, at := &o.WriteStatus, o.publishAt()
	if !o.Recorded || o.Ending != nil || c.Running || !o.Dir.Present || !c.Failed && o.LastStatus == status(r, o, now) {
		return next()
	}
	if c.Failed {
		at = max(at, c.Last.Add(statusRetry))
	}
	if now < at {
		return waitUntil(at)
	}
	return do(WriteStatus)
}
