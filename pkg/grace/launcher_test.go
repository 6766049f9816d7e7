package grace

import (
	"testing"
	"time"
)

// registered returns a launcher directory with a shim that lives.
func registered(uid string) Directory {
	return Directory{
		Present: true, Registered: true, UID: uid, Readable: true, Grace: "30",
		Locked: true, Holder: Holder{PID: 7, Start: 1, File: 77}, Watched: true,
	}
}

func withTrigger(d Directory, inode uint64, uid string) Directory {
	d.Trigger, d.TriggerID, d.TriggerUID = true, TriggerID{Inode: inode}, uid
	return d
}

// empty returns a VM of which nothing was seen yet.
func empty() *VM {
	p := policy
	p.DefaultPeriod = 30 * time.Second
	return NewVM("ns", "vm", Record{}, &p)
}

func TestWhichTriggerCounts(t *testing.T) {
	for _, c := range []struct {
		name     string
		given    func(*VM)
		dir      Directory
		counts   bool
		leftover bool
	}{
		{name: "none", dir: registered("uid")},
		{name: "a touch", dir: withTrigger(registered("uid"), 1, ""), counts: true},
		{name: "a touch where nobody knows whose VM it is", dir: withTrigger(Directory{Present: true}, 1, ""), counts: true},
		{name: "its shim's", dir: withTrigger(registered("uid"), 1, "uid"), counts: true},
		{name: "an earlier VM's", dir: withTrigger(registered("uid"), 1, "old"), leftover: true},
		{name: "one that names a VM, where nobody knows whose this is", dir: withTrigger(Directory{Present: true}, 1, "uid")},
		{name: "one that names the VMI that is shown", given: func(v *VM) { v.SeeVMI(VMI{State: VMIPresent, UID: "uid", Created: born}) },
			dir: withTrigger(Directory{Present: true}, 1, "uid"), counts: true},
		{name: "one that names the VM of the pod", given: func(v *VM) { v.obs.Pod = Pod{UID: "pod", VMI: "uid"} },
			dir: withTrigger(Directory{Present: true}, 1, "uid"), counts: true},
		{name: "one that names its own pod", given: itsPod, dir: withTrigger(registered("pod"), 1, "pod"), counts: true},
		{name: "one that names its own pod, whose launcher has left", given: itsPod, dir: withTrigger(Directory{Present: true}, 1, "pod"), counts: true},
		{name: "one that names another pod", given: itsPod, dir: withTrigger(registered("pod"), 1, "pod-2"), leftover: true},
		{name: "one that was consumed", given: func(v *VM) { v.obs.Consumed = TriggerID{Inode: 1} },
			dir: withTrigger(registered("uid"), 1, "uid")},
		{name: "one that came after the consumed one", given: func(v *VM) { v.obs.Consumed = TriggerID{Inode: 1} },
			dir: withTrigger(registered("uid"), 2, "uid"), counts: true},
	} {
		v := empty()
		if c.given != nil {
			c.given(v)
		}
		v.SeeDirectory(c.dir, t0, t0)
		if v.obs.Trigger != c.counts || (v.obs.Leftover != TriggerID{}) != c.leftover {
			t.Errorf("%s: counts %v, leftover %v; want %v, %v", c.name, v.obs.Trigger, v.obs.Leftover, c.counts, c.leftover)
		}
	}
}

// itsPod is given a launcher pod that was made for a VMI, and whose directory is looked at.
func itsPod(v *VM) { v.obs.Pod, v.obs.Followed = Pod{UID: "pod", VMI: "uid"}, "pod" }

// Given a launcher that was made before its VMI, and so names its pod. Then the agent's status names the
// pod, too: a launcher takes only what names it as it names itself.
func TestALauncherIsAnsweredByTheNameThatItHas(t *testing.T) {
	for claim, want := range map[string]string{"pod": "pod", "uid": "uid", "": "uid", "pod-2": "uid"} {
		v := empty()
		itsPod(v)
		v.SeeDirectory(registered(claim), t0, t0)
		if got := v.Status(t0).UID; got != want {
			t.Errorf("a launcher of %q is answered as %q, want %q", claim, got, want)
		}
	}
}

func TestATriggerBeginsWhenItWasFirstSeen(t *testing.T) {
	v := empty()
	v.SeeDirectory(withTrigger(registered("uid"), 1, "uid"), at(1), at(2))
	v.SeeDirectory(withTrigger(registered("uid"), 2, "uid"), at(5), at(6)) // another one in its place
	if v.obs.TriggerAt != at(1) || v.obs.TriggerID.Inode != 2 {
		t.Errorf("seen at t0+%v, file %d", v.obs.TriggerAt.Sub(t0), v.obs.TriggerID.Inode)
	}
	v.SeeDirectory(registered("uid"), at(7), at(7))
	v.SeeDirectory(withTrigger(registered("uid"), 3, "uid"), at(8), at(8))
	if v.obs.TriggerAt != at(8) {
		t.Errorf("a trigger after none began at t0+%v", v.obs.TriggerAt.Sub(t0))
	}
}

func TestALeftoverIsRemovedOnceAndNeverBegins(t *testing.T) {
	v := inPhase(t, Running)
	v.SeeDirectory(withTrigger(registered("uid"), 5, "old"), t0, t0)
	d := v.Next(t0)
	if d.Do != ClearTrigger || d.Trigger.Inode != 5 {
		t.Fatalf("%s of %v by %q", d.Do, d.Trigger, d.Rule)
	}
	v.Done(d, Result{}, t0)
	// It could not be removed.
	v.SeeDirectory(withTrigger(registered("uid"), 5, "old"), t0, t0)
	if d := v.Next(t0); d.Do == ClearTrigger || d.Do == Begin {
		t.Errorf("%s by %q", d.Do, d.Rule)
	}
}

func TestAShimThatDied(t *testing.T) {
	held, free := registered("uid"), registered("uid")
	free.Locked, free.Holder.PID, free.Holder.Start, free.Watched = false, 0, 0, false
	gone := Directory{Present: true}
	other := free
	other.Holder.File = 78
	for _, c := range []struct {
		name  string
		looks []Directory
		want  shim
	}{
		{"alive", []Directory{held}, shimAlive},
		{"killed", []Directory{held, free}, shimDied},
		{"killed, and looked at again", []Directory{held, free, free}, shimDied},
		{"never seen alive", []Directory{free}, shimOrphan},
		{"another one's file", []Directory{held, other}, shimOrphan},
		{"ended in order", []Directory{held, gone}, shimNone},
		{"ended in order, then an old file", []Directory{held, gone, free}, shimOrphan},
	} {
		v := empty()
		for i, d := range c.looks {
			v.SeeDirectory(d, at(float64(i)), at(float64(i)))
		}
		if v.obs.Shim != c.want {
			t.Errorf("%s: %d, want %d", c.name, v.obs.Shim, c.want)
		}
		if c.want == shimDied && v.obs.DiedAt != at(1) {
			t.Errorf("%s: first seen at t0+%v", c.name, v.obs.DiedAt.Sub(t0))
		}
	}
}

func TestAClaimIsBelievedOnlyWhereKubernetesSaysTheSame(t *testing.T) {
	vmi := VMI{State: VMIPresent, UID: "uid", Created: born}
	for _, c := range []struct {
		name     string
		given    func(*VM)
		claim    string
		believed bool
	}{
		{"nobody else says anything", func(*VM) {}, "any", true},
		{"the VMI is the same", func(v *VM) { v.SeeVMI(vmi) }, "uid", true},
		{"the VMI is another", func(v *VM) { v.SeeVMI(vmi) }, "other", false},
		{"nothing is claimed", func(v *VM) { v.SeeVMI(vmi) }, "", true},
		{"the pod was made for another", func(v *VM) { v.obs.Pod.VMI = "uid" }, "other", false},
		{"its own pod is named", itsPod, "pod", true},
		{"another pod is named", itsPod, "pod-2", false},
	} {
		v := empty()
		c.given(v)
		d := registered(c.claim)
		d.Grace = "7"
		if got := v.SeeDirectory(d, t0, t0); got != c.believed {
			t.Errorf("%s: believed %v", c.name, got)
		}
		if stated := v.obs.Period.Length == 7*time.Second; stated != c.believed {
			t.Errorf("%s: its grace period counts: %v", c.name, stated)
		}
	}
}

func TestAStormOfChangesCostsTenLooksASecond(t *testing.T) {
	v := empty()
	looks := 0
	for now := t0; now < at(10); now = now.Add(time.Millisecond) {
		v.DirectoryChanged()
		if d := v.Next(now); d.Do == LookDirectory {
			looks++
			v.Done(d, Result{Call: v.Started(d, now)}, now)
		} else if d.Do == Look {
			v.Done(d, Result{Call: v.Started(d, now)}, now)
		}
	}
	if looks < 100 || looks > 100+lookBurst {
		t.Errorf("%d looks in 10 s", looks)
	}
}

func TestADirectoryThatCannotBeReadIsTriedAgainAndSaysNothing(t *testing.T) {
	v := empty()
	v.SeeDirectory(withTrigger(registered("uid"), 1, "uid"), t0, t0)
	v.obs.DirWanted = false
	v.DirectoryUnreadable(at(1))
	if !v.obs.Trigger || v.obs.Shim != shimAlive {
		t.Error("an error has taken away what was known")
	}
	if v.obs.DirAt != at(2) {
		t.Errorf("looked at again at t0+%v", v.obs.DirAt.Sub(t0))
	}
}

func TestForWhomATriggerIsAtTheEnd(t *testing.T) {
	r := Record{Name: "vm", BootID: boot, Launcher: Holder{PID: 7}}
	next := withTrigger(registered("uid"), 1, "uid")
	next.Holder.PID = 8
	for _, c := range []struct {
		name string
		r    Record
		d    Directory
		boot string
		want bool
	}{
		{"its own", r, withTrigger(registered("uid"), 1, "uid"), boot, false},
		{"another VM's", r, withTrigger(registered("next"), 1, "next"), boot, true},
		{"the same VM's, with another shim", r, next, boot, true},
		{"after a reboot, with a shim that lives", r, withTrigger(registered("uid"), 1, "uid"), "other", true},
		{"after a reboot, with none", r, withTrigger(Directory{Present: true}, 1, "uid"), "other", false},
		{"there was no record", Record{}, withTrigger(registered("next"), 1, "next"), boot, false},
		{"there is none", r, registered("uid"), boot, false},
	} {
		if got := c.r.ForNext(c.d, c.boot, "uid"); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
