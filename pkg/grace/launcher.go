package grace

import (
	"cmp"
	"time"
)

// TriggerID tells a trigger file from its successor.
type TriggerID struct {
	Inode uint64
	Mtime int64
}

// Directory is the state of a launcher directory at one moment.
type Directory struct {
	Present    bool
	ID         [2]uint64 // device and inode; another one may be mounted over it
	Registered bool      // vm.json is there
	UID        string    // the VM that vm.json names, "" if it names none
	Readable   bool      // vm.json can be read; Grace is what it states
	Grace      string
	Locked     bool // Holder has locked vm.json
	// Holder is who holds the lock; PID is 0 where it cannot be seen. Watched
	// reports whether its end will be seen.
	Holder  Holder
	Watched bool
	// LauncherGone means that a look found the record's launcher ended.
	LauncherGone bool

	Trigger    bool
	TriggerID  TriggerID
	TriggerUID string // the VM that it names, "" for a touch
}

// Pauses before a look that no event asks for: after an error, and while a shim lives
// that cannot be watched.
const (
	lookAfterError = time.Second
	lookUnwatched  = 500 * time.Millisecond
)

// A tenant can cause any number of events. These limits allow more looks than any shim
// needs, and bound the cost.
const (
	lookBurst = 10
	lookEvery = 100 * time.Millisecond
)

// DirectoryChanged asks for a look at the launcher directory.
func (v *VM) DirectoryChanged() { v.obs.DirWanted = true }

// DirectoryUnreadable notes a failed look: the last known state stands.
func (v *VM) DirectoryUnreadable(now Mono) {
	v.obs.Looked = true
	v.obs.DirAt = now.Add(lookAfterError)
}

// SeeDirectory takes what a look has found, and when it was over. It returns false if
// vm.json names another VM than Kubernetes does: then the content of vm.json is ignored.
func (v *VM) SeeDirectory(d Directory, seen, now Mono) (believed bool) {
	o := &v.obs
	o.Looked = true
	if believed = v.believes(d.UID); !believed {
		d.UID, d.Readable, d.Grace = "", false, ""
	}
	if d.ID != o.Dir.ID {
		o.LastStatus = Status{} // it was for another directory
	}
	o.Dir = d
	v.seeShim(&d, now)
	o.Owner.Claimed = cmp.Or(o.Pod.VMI, d.UID)
	v.seeTrigger(&d, seen)
	v.choosePod()
	v.resolve()
	return believed
}

func (v *VM) believes(claim string) bool {
	uid, created := v.obs.Owner.Is(&v.rec)
	if created.IsZero() {
		uid = ""
	}
	uid = cmp.Or(v.obs.Pod.VMI, uid)
	return uid == "" || claim == "" || claim == uid || claim == v.obs.Followed
}

// namesItsPod reports whether the launcher names its own pod in place of a VMI, which it did not
// know when it began. Whose pod that is, is Kubernetes' word.
func (o *observation) namesItsPod() bool { return o.Dir.UID != "" && o.Dir.UID == o.Followed }

func (v *VM) seeShim(d *Directory, now Mono) {
	o, was := &v.obs, v.obs.Shim
	switch {
	case !d.Registered:
		o.Shim, o.Holder = shimNone, Holder{}
	case d.Locked && o.Recorded && v.rec.Launcher.succeeded(d):
		// The recorded shim has died, although another one has replaced it.
		o.Shim, o.Holder = shimDied, d.Holder
	case d.Locked:
		o.Shim, o.Holder = shimAlive, d.Holder
	case o.Recorded && v.rec.Launcher.sameFile(d.Holder), !o.Recorded && o.Holder.sameFile(d.Holder):
		// The same file was locked while this instance ran: its shim is dead.
		o.Shim = shimDied
	default:
		o.Shim = shimOrphan
	}
	if d.Registered && d.Locked && !d.Watched {
		o.DirAt = now.Add(lookUnwatched)
	}
	o.shimChanged(was, now)
}

func (o *observation) shimChanged(was shim, now Mono) {
	if o.Shim == shimDied && was != shimDied {
		o.DiedAt, o.DiedWithNode = now, o.Node.maybe()
	}
	if o.Shim != shimAlive && was == shimAlive {
		o.ShimEndedAt = now
	}
}

// succeeded reports whether the shim h has ended and another one in the same launcher pod
// holds the lock.
func (h Holder) succeeded(d *Directory) bool {
	return h.PID != 0 && d.LauncherGone && d.Holder.PID != 0 && !h.sameProcess(d.Holder) && (h.Pod == d.Holder.Pod || h.Pod == "")
}

// seeTrigger decides whether a trigger counts. One that names a VM waits until the UID of
// this VM is known. It is a leftover if it names another one.
func (v *VM) seeTrigger(d *Directory, seen Mono) {
	o := &v.obs
	uid := cmp.Or(o.Owner.Claimed, launcherUID(&v.rec, o), o.Owner.Shown.UID)
	known := d.TriggerUID == "" || d.TriggerUID == uid || o.stillCounts(d, uid)
	counts := d.Trigger && d.TriggerID != o.Consumed && known
	o.Leftover = TriggerID{}
	switch {
	case !d.Trigger:
		o.Consumed = TriggerID{} // the next trigger may have the same ID
	case !counts && d.TriggerID != o.Consumed && uid != "":
		o.Leftover = d.TriggerID
	case counts && !o.Trigger:
		o.TriggerAt = seen
	}
	o.Told = o.Told && counts
	if o.Trigger = counts; counts {
		o.TriggerID, o.TriggerByShim = d.TriggerID, d.TriggerUID != ""
	}
}

// stillCounts reports whether a trigger is for this VM, although it does not name it by uid: it
// names the pod that it is in, or it has counted, its launcher has left, and nobody states the UID.
func (o *observation) stillCounts(d *Directory, uid string) bool {
	return d.TriggerUID == o.Followed || uid == "" && o.Trigger && d.TriggerID == o.TriggerID
}

// launcherUID is the UID by which the launcher knows this VM.
func launcherUID(r *Record, o *observation) string {
	switch {
	case o.namesItsPod():
		return o.Dir.UID
	case o.Pod.VMI != "":
		return o.Pod.VMI
	case o.Recorded:
		return r.UID
	default:
		return o.Owner.Claimed
	}
}

// ForNext reports whether the trigger in a launcher directory is for an instance after
// the record's. It is if it names another VM than uid. It also is if another shim lives
// there: a shim clears every trigger it finds at its start.
func (r *Record) ForNext(d Directory, bootID, uid string) bool {
	if !d.Trigger || r.Name == "" {
		return false
	}
	otherVM := d.TriggerUID != "" && uid != "" && d.TriggerUID != uid
	otherShim := r.BootID != bootID || r.Launcher.PID != 0 && r.Launcher.PID != d.Holder.PID
	return otherVM || otherShim && d.Locked && d.Holder.PID != 0
}

// forgetDirectory drops what was seen in the directory of the former launcher.
func (o *observation) forgetDirectory() {
	o.Dir, o.LastStatus = Directory{}, Status{}
	o.Trigger, o.TriggerID, o.Consumed, o.Leftover, o.Told = false, TriggerID{}, TriggerID{}, TriggerID{}, false
	o.Shim, o.Holder = shimUnknown, Holder{}
	o.DirWanted = true
}

func leftoverTrigger(_ *Record, o *observation, _ *Policy, _ Mono) (Decision, bool) {
	if o.Leftover == (TriggerID{}) {
		return next()
	}
	return Decision{Do: ClearTrigger, Trigger: o.Leftover}, true
}

func lookAtDirectory(_ *Record, o *observation, _ *Policy, now Mono) (Decision, bool) {
	at := o.DirAt
	if o.DirWanted {
		at = 0
	}
	if at == Never || o.LookDir.Running {
		return next()
	}
	if at = max(at, o.DirReserved.Add(-(lookBurst-1)*lookEvery)); now < at {
		return waitUntil(at)
	}
	return do(LookDirectory)
}
