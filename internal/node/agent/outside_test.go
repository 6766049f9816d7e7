package agent

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

// Events outside while an agent follows a shutdown, or is away: the clock is set, the
// node reboots, libvirt loses a VM.

func TestAWallClockThatIsSetMovesNoDeadline(t *testing.T) {
	for name, set := range map[string]func(past time.Duration) time.Duration{
		"a day forward": func(time.Duration) time.Duration { return 24 * time.Hour },
		"a day back":    func(time.Duration) time.Duration { return -24 * time.Hour },
		"a fast slew":   func(past time.Duration) time.Duration { return past / 10 },
		"a slow slew":   func(past time.Duration) time.Duration { return -past / 10 },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.guarded(fake.Guest{Name: domain, Frozen: true}, "30")
				r.trigger(domain)
				r.after(second)
				begun := r.dir(domain).said()
				if got := begun.Deadline.Sub(begun.StartedAt); got != 30*second {
					t.Errorf("on the wall clock the deadline is %v after the start", got)
				}
				for past := second; past < 39*second; past += second {
					r.setWall(set(past))
					if past == 15*second {
						r.restart()
					}
					r.after(second)
					if s := r.dir(domain).said(); s.StartedAt != begun.StartedAt || s.Deadline != begun.Deadline {
						t.Fatalf("status.json: from %v to %v; at first from %v to %v", s.StartedAt, s.Deadline, begun.StartedAt, begun.Deadline)
					}
				}
				r.after(minute)
				r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
				if got, want := r.when(fake.OpSignal, domain), []time.Duration{31 * second, 41 * second}; !slices.Equal(got, want) {
					t.Errorf("signalled at %v, want %v", got, want)
				}
			})
		})
	}
}

func TestATriggerOfTheNextInstanceOutlivesTheOldRecord(t *testing.T) {
	for _, c := range []struct {
		name, boot, uid string
		begun           bool
	}{
		{name: "another VM of that name", boot: "boot", uid: "uid-2"},
		{name: "another VM of that name, in mid-grace", boot: "boot", uid: "uid-2", begun: true},
		{name: "the same VMI, another shim", boot: "boot", uid: "uid-" + domain},
		{name: "the same VMI after a reboot", boot: "next boot", uid: "uid-" + domain, begun: true},
		{name: "another VM after a reboot", boot: "next boot", uid: "uid-2", begun: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.guarded(fake.Guest{Name: domain}, "30")
				if c.begun {
					r.trigger(domain)
				}
				r.stop()
				// While no agent is there: the VM ends, the next one comes and is asked to go.
				r.hv.End(domain, grace.EndGuest)
				r.policy.BootID = c.boot
				shim := r.hv.StartProcess("the next shim")
				r.set(domain, func(v *watch.View) {
					*v = watch.View{Directory: grace.Directory{
						Present: true, Registered: true, Locked: true, Holder: grace.Holder{PID: shim.PID(), File: 78},
						UID: c.uid, Readable: true, Grace: "20",
						Trigger: true, TriggerUID: c.uid, TriggerID: grace.TriggerID{Inode: 4711},
					}}
				})
				r.hv.Start(fake.Guest{Name: domain, Presses: 1, ShutsDown: 2 * second})
				asked := r.hv.Count(fake.OpAsk, domain)
				r.run()
				r.after(200 * time.Millisecond)
				if s := r.dir(domain).said(); s.Phase != grace.ShuttingDown || s.UID != c.uid || s.Deadline.Sub(s.StartedAt) != 20*second {
					t.Errorf("status.json: %+v", s)
				}
				r.after(10 * second)
				if n := r.hv.Count(fake.OpAsk, domain) - asked; n != 1 {
					t.Errorf("the next VM was asked %d times, want once", n)
				}
				r.stoppedAs(domain, grace.LauncherSignal, grace.Graceful)
			})
		})
	}
}

func TestADestroyThatHangsThoughTheVMIsDeadIsNoEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.hv.Start(fake.Guest{Name: domain, Unidentified: true}) // only libvirt can destroy it
		r.after(12 * second)
		defer r.hv.Hang(fake.OpDestroy, domain)()
		r.trigger(domain)
		r.after(30 * second)
		if n := r.hv.Count(fake.OpDestroy, domain); n != 1 {
			t.Fatalf("%d destroys", n)
		}
		r.hv.Down(true) // and its event is lost
		r.hv.End(domain, grace.EndDestroyed)
		r.hv.Down(false)
		r.after(10 * second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}

func TestAChangeThatIsSeenWithTheTriggerStillCounts(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "300")
		r.stop()
		// While no agent is there another shim takes over, with another grace period.
		shim := r.hv.StartProcess("another shim")
		r.set(domain, func(v *watch.View) {
			v.Holder.PID, v.Holder.File, v.Grace = shim.PID(), 78, "20"
			v.Trigger, v.TriggerUID, v.TriggerID = true, v.UID, grace.TriggerID{Inode: 4711}
		})
		begun := time.Since(r.start)
		r.run()
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{begun + 20*second}; !slices.Equal(got, want) {
			t.Errorf("signalled at %v, want %v", got, want)
		}
	})
}

func TestAQEMUThatCannotBeKilledIsToldOnItsVMIOnce(t *testing.T) {
	inCluster(t, "30", func(r *rig, c *memoryCluster) {
		r.hv.End(domain, grace.EndDestroyed)
		r.after(time.Second)
		r.hv.Start(fake.Guest{Name: domain, Unkillable: true})
		r.after(time.Second)
		before := len(c.told())
		r.api(func(c *memoryCluster) { c.vmi.State, c.vmi.DeletingAt = grace.VMIDeleting, r.Now() })
		r.after(time.Hour)
		if got := c.told()[before:]; !slices.Equal(got, []string{"ShutdownStarted", "DestroyFailed"}) {
			t.Errorf("Events %v", got)
		}
	})
}

func TestAQEMUThatIsExitingIsNotToldAsOneThatCannotBeKilled(t *testing.T) {
	inCluster(t, "30", func(r *rig, c *memoryCluster) {
		r.hv.End(domain, grace.EndDestroyed)
		r.after(time.Second)
		r.hv.Start(fake.Guest{Name: domain, Presses: 1, ShutsDown: second, Frees: 10 * minute})
		r.after(time.Second)
		before := len(c.told())
		r.api(func(c *memoryCluster) { c.vmi.State, c.vmi.DeletingAt = grace.VMIDeleting, r.Now() })
		r.after(time.Hour)
		if got := c.told()[before:]; !slices.Equal(got, []string{"ShutdownStarted", "ShutdownCompleted"}) {
			t.Errorf("Events %v", got)
		}
	})
}

func TestAVMWithoutADomainIsNotAskedForAllTheTime(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: a launcher directory whose domain is not there yet.
		r.dir(domain)
		r.agent.LauncherChanged(domain)
		r.after(minute)
		before := r.hv.Count(fake.OpGet, domain)
		r.after(10 * minute)
		if n := r.hv.Count(fake.OpGet, domain) - before; n > 0 {
			t.Errorf("libvirt was asked %d times for what its lists do not have", n)
		}
		// When it appears, the next list shows it.
		r.hv.Start(fake.Guest{Name: domain})
		r.after(relist + second)
		if _, ok := r.record(); !ok {
			t.Error("it is not guarded")
		}
	})
}

func TestALauncherDirectoryThatIsMountedOverGetsItsStatus(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: a VM whose phase was written to the directory that kubelet made.
		r.guarded(fake.Guest{Name: domain}, "60")
		if s := r.dir(domain).said(); s.Phase != grace.Running {
			t.Fatalf("%+v", s)
		}
		// When kubelet mounts the volume there, then the launcher finds it, too.
		_ = r.dir(domain).WriteStatus(grace.Status{})
		r.change(domain, func(v *watch.View) { v.ID = [2]uint64{2, 1} })
		r.after(second)
		if s := r.dir(domain).said(); s.Phase != grace.Running {
			t.Errorf("%+v", s)
		}
	})
}

func TestWhatNoEventHasToldIsSeenByTheNextList(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Grace: "30"}, "20")
		for _, seconds := range []int{45, 30} { // 30 was told before
			r.after(3 * relist)
			r.hv.Restate(domain, strconv.Itoa(seconds))
			r.after(relist)
			if rec, _ := r.cache.get(domain); rec.Period.Length != time.Duration(seconds)*time.Second {
				t.Errorf("%d s were stated, the record has %v", seconds, rec.Period)
			}
		}
	})
}

func TestADomainThatLibvirtLetsGoOfIsNotAskedForAllTheTime(t *testing.T) {
	for outcome, guest := range map[grace.Outcome]fake.Guest{
		grace.Graceful: {Name: domain, Lingers: 5 * second, Presses: 1, ShutsDown: 100 * time.Millisecond},
		grace.Forced:   {Name: domain, Lingers: 5 * second},
	} {
		inBubble(t, func(r *rig) {
			i, _ := r.guarded(guest, "1")
			before := r.hv.Count(fake.OpGet, domain)
			r.trigger(domain)
			// While others end an event says it, and the process is watched.
			r.after(1050 * time.Millisecond)
			r.stoppedAs(domain, grace.LauncherSignal, outcome)
			// The process's end may be seen before libvirt's event.
			r.agent.DomainChanged(hypervisor.Event{Name: domain, UUID: i.UUID, End: grace.EndGuest})
			r.after(time.Millisecond)
			if n := r.hv.Count(fake.OpGet, domain) - before; n > 0 {
				t.Errorf("%s: it was asked for %d times", outcome, n)
			}
			r.after(5 * second)
			if n := r.hv.Count(fake.OpGet, domain) - before; n > 6 {
				t.Errorf("%s: it was asked for %d times in 5 s", outcome, n)
			}
		})
	}
}

func TestATriggerAndAnEndInTheAgentsAbsenceAreSeenTogether(t *testing.T) {
	for range 20 { // whichever of the two is found first
		inBubble(t, func(r *rig) {
			r.guarded(fake.Guest{Name: domain}, "30")
			r.stop()
			r.trigger(domain)
			r.hv.End(domain, grace.EndDestroyed)
			r.run()
			r.after(second)
			r.stoppedAs(domain, grace.LauncherSignal, grace.AlreadyStopped)
		})
	}
}
