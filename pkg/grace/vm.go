package grace

import "time"

// VM is the state of one VM: its record and its observations. Its methods take facts;
// Next returns what to do. The caller reports an action with Done once it is carried out.
// For an action that takes time it calls Started before. Only one goroutine at a time may
// call the methods.
type VM struct {
	Namespace, Name string

	policy    *Policy
	rec       Record
	obs       observation
	pods      []Pod
	instances int // counts them, so that results about an earlier one are ignored
}

// NewVM returns a VM of which nothing is known but its record, if r.Name is set.
func NewVM(namespace, name string, r Record, p *Policy) *VM {
	v := &VM{Namespace: namespace, Name: name, policy: p, obs: newObservation(p)}
	if r.Name != "" {
		v.restore(r)
	}
	v.obs.Followed = v.rec.Pod
	return v
}

func (v *VM) restore(r Record) {
	r.Instance = r.Instance.certain()
	v.rec, v.obs.Recorded, v.obs.OnDisk, v.obs.Period = r, true, true, r.Period
	v.obs.Restored = r.ShuttingDown()
	v.obs.Pod.UID = r.Pod
}

// Recover takes over a record that was read late, unless the current one is newer or has
// an earlier deadline. If an instance has ended meanwhile, the record belongs to that one
// or to an earlier one, and is to be removed.
func (v *VM) Recover(r Record) bool {
	r.Instance = r.Instance.certain()
	switch {
	case v.obs.Ending != nil:
		v.obs.OnDisk = true
		return false
	case v.HadInstance():
		v.obs.StaleRecord = true
		return false
	}
	newer := v.obs.Recorded && r.Instance != v.rec.Instance
	earlier := v.rec.ShuttingDown() && (!r.ShuttingDown() || v.rec.Shutdown.Deadline <= r.Shutdown.Deadline)
	if newer || earlier {
		return false
	}
	v.restore(r)
	v.changed()
	return true
}

// HadInstance reports whether no instance is guarded and a guarded one has ended. A
// record that is read then is not a later instance's: this agent has written none.
func (v *VM) HadInstance() bool { return !v.obs.Recorded && v.obs.Former != (Instance{}) }

// AwaitCluster lets a shutdown wait for the API server's first list, until then at most.
func (v *VM) AwaitCluster(until Mono) { v.obs.OwnerBy = until }

// SeeVMI takes what the watch shows of the VMI of this name.
func (v *VM) SeeVMI(vmi VMI) {
	o, before := &v.obs, v.obs.Owner.Shown.UID
	if o.Owner.see(&v.rec, vmi) {
		o.Confirm = Call{Running: o.Confirm.Running}
	}
	v.choosePod()
	v.resolve()
	if vmi.UID != before {
		v.DirectoryChanged() // the VM that the launcher may name has changed
	}
}

// Learn takes what the API server says became of the VMI with this UID.
func (v *VM) Learn(uid string, f Fate, now Mono) {
	if asked, _ := v.obs.Owner.Is(&v.rec); !v.obs.Recorded || asked != uid {
		return
	}
	if v.obs.Owner.learn(&v.rec, uid, f, now) {
		v.obs.Confirm = Call{}
	}
	v.choosePod()
	v.resolve()
}

// SaveAgain saves the record again after the cache has lost it.
func (v *VM) SaveAgain() {
	if v.obs.Recorded && v.obs.Ending == nil {
		v.changed()
	}
}

// Next returns what to do now, or Wait with the time to ask again. After any other
// action, ask again at once.
func (v *VM) Next(now Mono) Decision {
	wait := decide(&v.rec, &v.obs, v.policy, now)
	if wait.Do != Wait {
		return wait
	}
	for i := range background {
		d, yes := background[i].decide(&v.rec, &v.obs, v.policy, now)
		if yes && d.Do != Wait {
			d.Rule = background[i].name
			return d
		} else if yes {
			wait.At = min(wait.At, d.At)
		}
	}
	return wait
}

// change applies a decision that changes the record or the observation.
func (v *VM) change(d Decision, now Mono, wall time.Time) {
	o, before := &v.obs, v.rec
	switch d.Do {
	case Adopt:
		v.adopt(now)
	case Identify:
		v.rec.Instance = o.Instance
	case Refresh:
		v.rec.refresh(o)
	case Begin:
		v.rec.begin(d.Cause, d.When, wall.Add(-now.Sub(d.When)), v.policy.DryRun)
		v.overBefore(now)
		if o.Trigger {
			o.BegunBy = o.TriggerID
		}
	case HoldShutdown:
		v.rec.Hold = d.Hold.Told(wall.Add(-now.Sub(d.When)))
	case Shorten:
		v.rec.shorten(d.When)
	case DropDryRun:
		v.rec.Hold, v.rec.Shutdown = Hold{}, Shutdown{}
		o.Announced, o.HoldAnnounced, o.Restored = false, false, false
	case Finish:
		v.finish(d, now, wall)
		return
	default: // Reset, Forget
		v.reset(now)
		return
	}
	v.changedFrom(before, d.Do)
}

// phase is the record's, "" without one.
func (v *VM) phase(now Mono) Phase {
	switch {
	case v.obs.Ending != nil:
		return Stopped
	case !v.obs.Recorded:
		return ""
	default:
		return v.rec.Phase(now)
	}
}

func (v *VM) adopt(now Mono) {
	o := &v.obs
	v.rec = Record{
		Namespace: v.Namespace, Name: v.Name, Pod: o.Pod.UID, BootID: v.policy.BootID,
		Period: o.Period, Instance: o.Instance,
	}
	v.rec.UID, v.rec.VMICreated = o.Owner.toRecord(&v.rec)
	v.rec.Holdable = o.holdable(&v.rec)
	switch o.Shim {
	case shimAlive:
		v.rec.Launcher = o.Holder
	case shimDied:
		o.Shim = shimOrphan // it died before this instance was there
	default:
	}
	o.Recorded = true
	if o.Trigger {
		o.TriggerAt = now // it waited for the domain; the grace period begins now
	}
}

// Record is what the node remembers of the VM; zero if there is none.
func (v *VM) Record() Record { return v.rec }

// Recorded reports whether there is a record.
func (v *VM) Recorded() bool { return v.obs.Recorded }

// Owner returns whose VM it is; created is zero if the API server never showed that VMI.
func (v *VM) Owner() (uid string, created time.Time) { return v.obs.Owner.Is(&v.rec) }

// Pod returns the launcher pod; only its UID if it was not shown yet.
func (v *VM) Pod() Pod { return v.obs.Pod }

// Holder returns who holds the lock of vm.json, as far as is known.
func (v *VM) Holder() Holder { return v.obs.Holder }

// BegunBy returns the trigger that was present when the shutdown began; zero if there was
// none or this agent does not know.
func (v *VM) BegunBy() TriggerID { return v.obs.BegunBy }

// Restored reports whether the shutdown was begun by an agent before this one.
func (v *VM) Restored() bool { return v.obs.Restored }

// Gone reports whether the record's instance has ended.
func (v *VM) Gone() bool { return v.obs.Gone }

// Unsaved reports whether the record differs from what is on disk.
func (v *VM) Unsaved() bool { return v.obs.Unsaved }

// Summary is what the rest of the agent reads of a VM.
type Summary struct {
	Phase      Phase         // the record's, "" without one
	Running    bool          // there is a record, and its instance has not ended
	HeldSince  Mono          // since when the shutdown is held, 0 while it is not
	Needs      time.Duration // what its shutdown takes at most
	Priority   int32         // of its launcher pod, 0 where none is known
	Unwritable bool          // the disk refuses the record or its removal, or does not answer
	Pod        string        // the UID of its launcher pod, "" where none is known
	Period     time.Duration // its grace period
	// Unheard is why the guest has not shut down so far, "" if there is nothing to say.
	Unheard string
	// Cause and DeadlineAt are those of its shutdown, or of its hold; zero without one.
	Cause      Cause
	DeadlineAt time.Time
}

// Summary returns the VM's summary.
func (v *VM) Summary(now Mono) Summary {
	s := Summary{
		Running: v.obs.Recorded && !v.obs.Gone, Needs: v.rec.Period.Length + v.policy.DestroyTimeout,
		Priority: v.obs.Pod.Priority, Unwritable: v.unwritable(now), Pod: v.obs.Pod.UID, Period: v.rec.Period.Length,
	}
	if v.obs.Recorded {
		s.Phase = v.rec.Phase(now)
		shown := v.rec.Shown()
		s.Cause, s.DeadlineAt = shown.Cause, shown.DeadlineAt
	}
	if v.rec.ShuttingDown() {
		s.Unheard = unheard(&v.rec, &v.obs, now)
	} else { // the record keeps an earlier hold
		s.HeldSince = v.rec.Hold.Start
	}
	return s
}

// due returns when the record's shutdown signals QEMU; Never if there is none in this
// boot.
func (v *VM) due() Mono {
	if !v.rec.ShuttingDown() || v.rec.BootID != v.policy.BootID {
		return Never
	}
	return signalAt(&v.rec, &v.obs)
}

// ArmAt returns when SIGTERM is to be sent, even if the agent is blocked then; Never if
// none is. A shutdown that is not saved yet gets a moment for that. Otherwise a killed
// agent would not know about its own signal.
func (v *VM) ArmAt(now Mono) Mono {
	o := &v.obs
	if v.policy.DryRun || v.rec.Shutdown.DryRun || o.Gone || o.Term.Tries > 0 && !o.Term.Running {
		return Never
	}
	due := v.due()
	if due == Never || !o.Unsaved || o.Save.Failed {
		return due
	}
	since := now
	if o.Save.Running {
		since = o.Save.Last
	}
	return max(due, since.Add(saveDeadlineTimeout))
}

func (v *VM) unwritable(now Mono) bool {
	s := &v.obs.Save
	return (v.obs.StaleRecord || v.obs.Remove.Running) && v.obs.Remove.Failed ||
		v.obs.Recorded && v.obs.Unsaved && (s.Failed || s.Running && now.Sub(s.Last) >= slowDisk)
}

// Idle reports whether there is no VM to guard and nothing under way. A launcher pod
// prevents that. So does a former VMI that is still shown: its deletion must not count
// for the next domain.
func (v *VM) Idle() bool {
	o := &v.obs
	former := o.Owner.Shown.UID != "" && o.Owner.Shown.UID == o.Owner.endedUID()
	return !o.StaleRecord && !o.Recorded && o.Ending == nil && o.Looked && !o.Dir.Present && !o.DirWanted && o.DirAt == Never &&
		!former && o.Pod.UID == "" && o.Domain != domainUnknown
}
