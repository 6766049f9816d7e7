package grace

import (
	"errors"
	"time"
)

// VM is the state of one VM: its record, and what was observed. Its methods take
// facts, and Next returns what to do. Whoever carries a decision out reports that
// with Apply, Started and Done. It has one owner: its methods may not
// be called from two goroutines at once.
type VM struct {
	Namespace, Name string

	policy    *Policy
	rec       Record
	obs       observation
	pods      []Pod
	instances int // counts them: what was found out of an earlier one says nothing
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

// Recover takes over a record that could be read only late, unless what is
// known by now is newer, or its deadline earlier. Where an instance has ended
// meanwhile it is that one's, or one's before it, and is to be removed.
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

// HadInstance reports whether nothing is guarded here, and an instance has ended
// that was. A record that is read then is not of a later one: this agent has
// written none.
func (v *VM) HadInstance() bool { return !v.obs.Recorded && v.obs.Former != (Instance{}) }

// AwaitCluster has a shutdown wait until then for the API server's first list.
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
		v.DirectoryChanged() // who the launcher may claim to be has changed
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

// SaveAgain is called when the cache has lost what was put there.
func (v *VM) SaveAgain() {
	if v.obs.Recorded && v.obs.Ending == nil {
		v.changed()
	}
}

// Next says what to do now, or when to ask again: after anything but Wait, at
// once.
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

var errNotDecided = errors.New("no such decision about a record")

// Apply makes a decision true that changes the record, or what is known. now
// and wall are the same moment. An error is a bug.
func (v *VM) Apply(d Decision, now Mono, wall time.Time) error {
	from := v.phase(now)
	if err := allow(from, d.Do); err != nil {
		return err
	}
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
		v.rec.hold(d.Hold, wall.Add(-now.Sub(d.When)))
	case Shorten:
		v.rec.shorten(d.When)
	case DropDryRun:
		v.rec.Hold, v.rec.Shutdown = Hold{}, Shutdown{}
		o.Announced, o.HoldAnnounced, o.Restored = false, false, false
	case Finish:
		v.finish(d, now, wall)
		return nil
	case Reset, Forget:
		v.reset(now)
		return nil
	default:
		return errNotDecided
	}
	v.changedFrom(before, d.Do)
	return arrived(from, d.Do, v.phase(now))
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

// Owner says whose VM it is; created is zero where the API server never said
// anything of it.
func (v *VM) Owner() (uid string, created time.Time) { return v.obs.Owner.Is(&v.rec) }

// Pod is the launcher pod; of one that was not shown yet there is only the UID.
func (v *VM) Pod() Pod { return v.obs.Pod }

// Holder is who holds the lock of vm.json, as far as is known.
func (v *VM) Holder() Holder { return v.obs.Holder }

// BegunBy is the trigger that was there when the shutdown began, zero where there was none
// or this agent does not know.
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
}

// Summary is that of the VM now.
func (v *VM) Summary(now Mono) Summary {
	s := Summary{
		Running: v.obs.Recorded && !v.obs.Gone, Needs: v.rec.Period.Length + v.policy.DestroyTimeout,
		Priority: v.obs.Pod.Priority, Unwritable: v.unwritable(now),
	}
	if v.obs.Recorded {
		s.Phase = v.rec.Phase(now)
	}
	if !v.rec.ShuttingDown() { // the record keeps what was before it
		s.HeldSince = v.rec.Hold.Start
	}
	return s
}

// due is the deadline that the record has in this boot, Never if it has none.
func (v *VM) due() Mono {
	if !v.rec.ShuttingDown() || v.rec.BootID != v.policy.BootID {
		return Never
	}
	return signalAt(&v.rec, &v.obs)
}

// ArmAt is when SIGTERM is to be sent, whatever the agent waits for then; Never
// if none is. A shutdown that is not durable yet is left a moment for that: else
// an agent that is killed with a deadline of now does not know what it has done.
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
	return v.obs.StaleRecord && v.obs.Remove.Failed ||
		v.obs.Recorded && v.obs.Unsaved && (s.Failed || s.Running && now.Sub(s.Last) >= slowDisk)
}

// Idle reports whether there is no VM to guard and nothing under way. A launcher pod
// keeps a VM from being idle, and so does a VMI whose deletion must not be held
// against the next domain.
func (v *VM) Idle() bool {
	o := &v.obs
	former := o.Owner.Shown.UID != "" && o.Owner.Shown.UID == o.Owner.endedUID()
	return !o.StaleRecord && !o.Recorded && o.Ending == nil && o.Looked && !o.Dir.Present && !o.DirWanted && o.DirAt == Never &&
		!former && o.Pod.UID == "" && o.Domain != domainUnknown
}
