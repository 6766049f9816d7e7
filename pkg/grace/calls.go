package grace

import "slices"

// callFor is where the state of a kind of call is kept, nil for what is none.
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

// outlivesInstance: a call that is about the place, not about the instance.
func outlivesInstance(a Action) bool {
	return a == Look || a == LookDirectory || a == WriteStatus || a == Remove
}

// Started is called when a decision is being carried out that takes time, or may
// fail. What it returns is for Done.
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
		o.Saving, o.NotedAt, o.OnDisk, o.StaleRecord = o.Version, 0, true, false // in the place of one that is left
		o.Urgent, o.SaveAfter = false, 0
	case LookDirectory:
		o.DirWanted, o.DirAt, o.DirReserved = false, Never, max(o.DirReserved, now).Add(lookEvery)
	case Look:
		o.LookAt = Never
	case WriteStatus:
		o.LastStatus = v.Status(now)
	case Answer:
		o.LastStatus = v.Status(now)
	default:
	}
	return *c
}

// Done is called when a call has ended. It returns false where it was about an
// instance that is no more: then nothing follows from it.
func (v *VM) Done(d Decision, started Call, failed bool, now Mono) bool {
	if !outlivesInstance(d.Do) && started.instance != v.instances {
		return false
	}
	o := &v.obs
	c := o.callFor(d)
	if c == nil {
		return true
	}
	c.Running, c.Failed = false, failed
	switch {
	case d.Do == Save && (failed || o.Saving == o.Version):
		o.Unsaved = failed // whatever it was, it is missing now
	case d.Do == Remove:
		o.StaleRecord = failed && !o.OnDisk
	case d.Do == Ask && !failed:
		v.note(Ask, now)
	case d.Do == Resume && !failed:
		o.Power = PowerOn
	case d.Do == Watch:
		o.Watched = !failed
	}
	return true
}

// Explained takes why the instance ended, as far as the hypervisor knows.
func (v *VM) Explained(e End) {
	if v.obs.End == EndUnknown {
		v.obs.End = e
	}
}

// note notes in the record what was done. Nothing waits for its save.
func (v *VM) note(by Action, now Mono) {
	done := &v.rec.Shutdown.Signalled
	if by == Ask {
		done = &v.rec.Shutdown.Requested
	}
	if *done || allow(v.phase(now), by) != nil {
		return
	}
	*done = true
	if v.obs.NotedAt == 0 {
		v.obs.NotedAt = now
	}
}

// Handled is called when a decision was carried out that takes no call.
func (v *VM) Handled(d Decision) {
	o := &v.obs
	switch d.Do {
	case Announce:
		o.Announced = v.rec.ShuttingDown()
		o.HoldAnnounced = true
	case ReportFailed:
		o.Reported = true
	case WarnOfPod:
		o.WarnedPod = o.Pod.UID
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

// Signalled is called when QEMU was signalled, or could not be. It returns true
// the first time that a signal has reached it.
func (v *VM) Signalled(d Decision, at Mono, err error) (first bool) {
	c := v.obs.callFor(d)
	if !c.Running {
		c.Tries++
	}
	c.Last, c.Running, c.Failed = at, false, err != nil
	if err != nil || v.rec.Shutdown.Signalled {
		return false
	}
	v.note(d.Do, at)
	return v.rec.Shutdown.Signalled
}

// NoteDestroy is called when libvirt's destroy is all there is. It returns true
// the first time.
func (v *VM) NoteDestroy(now Mono) (first bool) {
	if v.rec.Instance.PID != 0 || v.rec.Shutdown.Signalled {
		return false
	}
	v.note(Destroy, now)
	return true
}

// Tries is how often what was decided has been tried.
func (v *VM) Tries(d Decision) int { return v.obs.callFor(d).Tries }
