package grace

import (
	"slices"
	"time"
)

// callFor returns the state of the call that d makes, nil if it makes none.
func (o *observation) callFor(d Decision) *Call {
	switch d.Do {
	case Save:
		return &o.Save
	case Look:
		return &o.Look
	case LookDirectory:
		return &o.LookDir
	case Watch:
		return &o.Watch
	case Inspect:
		return &o.Inspect
	case Ask:
		if d.Mode == ModeAgent {
			return &o.AskAgent
		}
		return &o.AskACPI
	case Resume:
		return &o.Resume
	case Terminate:
		return &o.Term
	case Kill:
		return &o.Kill
	case Destroy:
		return &o.Destroy
	case Explain:
		return &o.Explain
	case Confirm:
		return &o.Confirm
	default:
		return o.callForEnd(d.Do)
	}
}

func (o *observation) callForEnd(a Action) *Call {
	switch a {
	case WriteStatus:
		return &o.WriteStatus
	case Answer:
		return &o.Answer
	case FlushEvents:
		return &o.FlushEvents
	case Remove:
		return &o.Remove
	default:
		return nil
	}
}

// outlivesInstance reports whether a call stays valid for the next instance.
func outlivesInstance(a Action) bool {
	return a == Look || a == LookDirectory || a == WriteStatus || a == Remove
}

// Started notes the start of a decision that takes time or may fail. Pass the returned
// value to Done in Result.Call.
func (v *VM) Started(d Decision, now Mono) Call {
	o := &v.obs
	c := o.callFor(d)
	if c == nil {
		return Call{instance: v.instances}
	}
	c.Running, c.Last, c.instance = true, now, v.instances
	c.Tries++
	switch d.Do {
	case Save:
		o.Saving, o.NotedAt, o.OnDisk, o.StaleRecord = o.Version, 0, true, false // it replaces a stale one
		o.Urgent, o.SaveAfter = false, 0
	case LookDirectory:
		o.DirWanted, o.DirAt, o.DirReserved = false, Never, max(o.DirReserved, now).Add(lookEvery)
	case Look:
		o.LookAt = Never
	case Remove:
		o.StaleRecord = false // a save that is started meanwhile leaves another one
	case WriteStatus, Answer:
		o.LastStatus = v.Status(now)
	case Destroy:
		if v.rec.Instance.PID == 0 { // only libvirt can end it
			v.note(Destroy, now)
		}
	default:
	}
	return *c
}

// Result is the result of a decision.
type Result struct {
	Call   Call // what Started returned, where it was called
	Failed bool // it could not be carried out
	// Refused is the guest's own answer to an Ask that it refuses, as one short line.
	Refused string
	Wall    time.Time // the wall clock's time at now, for a decision that changes the record
}

// Done takes the result of a decision that was carried out. now is when; for Terminate
// and Kill, when the signal was sent. It returns false, and changes nothing, if the
// decision was about an earlier instance.
func (v *VM) Done(d Decision, res Result, now Mono) bool {
	switch d.Do {
	case Adopt, Identify, Refresh, Begin, HoldShutdown, Shorten, DropDryRun, Finish, Reset, Forget:
		v.change(d, now, res.Wall)
	case Announce, ReportFailed, WarnOfPod, WarnOfSave, RejectPeriod, ClearTrigger, Follow:
		v.handled(d)
	case Terminate, Kill:
		v.signalled(d, res, now)
	default:
		return v.returned(d, res, now)
	}
	return true
}

// returned takes the result of a call.
func (v *VM) returned(d Decision, res Result, now Mono) bool {
	if !outlivesInstance(d.Do) && res.Call.instance != v.instances {
		return false
	}
	o := &v.obs
	c := o.callFor(d)
	if c == nil {
		return true
	}
	failed := res.Failed
	c.Running, c.Failed = false, failed
	switch {
	case d.Do == Save && (failed || o.Saving == o.Version):
		o.Unsaved = failed // a failed note counts too
	case d.Do == Remove:
		o.StaleRecord = o.StaleRecord || failed && !o.OnDisk
	case d.Do == Ask:
		v.answered(d, res, now)
	case d.Do == Resume && !failed:
		o.Power = PowerOn
	case d.Do == Watch:
		o.Watched = !failed
	}
	return true
}

// SeeEnd takes why the instance ended, unless a reason is known already.
func (v *VM) SeeEnd(e End) {
	if v.obs.End == EndUnknown {
		v.obs.End = e
	}
}

// note records what was done. Nothing waits for its save.
func (v *VM) note(by Action, now Mono) {
	done := &v.rec.Shutdown.Signalled
	if by == Ask {
		done = &v.rec.Shutdown.Requested
	}
	if *done || !v.rec.ShuttingDown() || v.obs.Ending != nil {
		return
	}
	if by != Ask {
		v.obs.Unheard = unheard(&v.rec, &v.obs, now)
	}
	*done = true
	if v.obs.NotedAt == 0 {
		v.obs.NotedAt = now
	}
}

// handled takes the result of a decision that needs no call.
func (v *VM) handled(d Decision) {
	o := &v.obs
	switch d.Do {
	case Announce:
		o.Announced = v.rec.ShuttingDown()
		o.HoldAnnounced = true
	case ReportFailed:
		o.Reported = true
	case WarnOfPod:
		o.WarnedPod = o.Pod.UID
	case WarnOfSave:
		o.SaveWarned = true
	case RejectPeriod:
		o.Stated[slices.Index(sources[:], d.Source)].Reported = d.Text
	case ClearTrigger:
		o.Consumed, o.Leftover = d.Trigger, TriggerID{}
		o.Trigger = o.Trigger && o.TriggerID != d.Trigger
	case Follow:
		o.Followed = o.Pod.UID
		o.forgetDirectory()
	default:
	}
}

// signalled takes the result of a signal to QEMU.
func (v *VM) signalled(d Decision, res Result, at Mono) {
	c := v.obs.callFor(d)
	if !c.Running {
		c.Tries++
	}
	c.Last, c.Running, c.Failed = at, false, res.Failed
	if !res.Failed {
		v.note(d.Do, at)
	}
}

// Tries returns how often d has been tried.
func (v *VM) Tries(d Decision) int { return v.obs.callFor(d).Tries }
