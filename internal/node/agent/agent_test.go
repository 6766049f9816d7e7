package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	second = time.Second
	minute = time.Minute
)

// unlocked does what the kernel does to vm.json when its shim dies.
func unlocked(v *watch.View) { v.Locked = false }

func TestAPoliteGuestIsAskedOnceAndStops(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Presses: 1, ShutsDown: 2 * second}, "30")
		r.trigger(domain)
		r.after(3 * second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Graceful)
		if n := r.hv.Count(fake.OpAsk, domain); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
	})
}

func TestADeafGuestIsAskedEachIntervalAndDestroyedAtTheDeadline(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "3600")
		r.trigger(domain)
		r.after(2 * time.Hour)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		if n := r.hv.Count(fake.OpAsk, domain); n != 720 {
			t.Errorf("asked %d times in an hour, want 720", n)
		}
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{time.Hour + second}; !slices.Equal(got, want) {
			t.Errorf("signalled at %v, want %v", got, want)
		}
	})
}

func TestTheRecordIsDurableBeforeTheGuestHearsAnything(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		r.cache.hangs()
		r.trigger(domain)
		r.after(1900 * time.Millisecond)
		if n := r.hv.Count(fake.OpAsk, domain); n != 0 {
			t.Error("asked while the record was being written")
		}
		r.after(200 * time.Millisecond)
		if n := r.hv.Count(fake.OpAsk, domain); n != 1 {
			t.Error("a disk that hangs must not stop the shutdown")
		}
		r.after(2 * minute)
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{61 * second}; !slices.Equal(got, want) {
			t.Errorf("signalled at %v, want %v: a disk that hangs must not move the deadline", got, want)
		}
	})
}

func TestAFullDiskIsLoudAndForgottenWhenThereIsRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		r.cache.fail(errors.New("no space left on device"))
		r.trigger(domain)
		if n := r.hv.Count(fake.OpAsk, domain); n != 1 {
			t.Error("a full disk stops the shutdown")
		}
		r.after(10 * second)
		if n := r.meter.of("rejected record_write"); n != 1 {
			t.Errorf("counted %d times, want once", n)
		}
		r.cache.fail(nil)
		r.after(2 * second)
		if rec, _ := r.cache.get(domain); !rec.ShuttingDown() {
			t.Error("the record was not written when there was room again")
		}
	})
}

func TestARestartKeepsTheDeadlineAtAnyMoment(t *testing.T) {
	for _, at := range []time.Duration{0, 1, second, 29 * second, 30 * second, 31 * second, 39 * second, 41 * second} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.guarded(fake.Guest{Name: domain, Frozen: true}, "30")
				r.trigger(domain)
				r.after(at)
				before, _ := r.cache.get(domain)
				r.restart()
				if after, ok := r.cache.get(domain); ok && after.Shutdown.Deadline != before.Shutdown.Deadline {
					t.Errorf("the deadline moved by %v", after.Shutdown.Deadline.Sub(before.Shutdown.Deadline))
				}
				r.after(2 * minute)
				r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
				if got := r.when(fake.OpSignal, domain)[0]; got != 31*second {
					t.Errorf("first signal at %v, want 31s", got)
				}
			})
		})
	}
}

func TestAnAgentThatComesBackLateDestroysAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		r.trigger(domain)
		r.stop()
		r.after(time.Hour)
		r.run()
		r.after(100 * time.Millisecond)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}

func TestAnotherBootMeansAnotherVM(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		r.trigger(domain)
		r.stop()
		r.policy.BootID = "next boot"
		r.change(domain, func(v *watch.View) { *v = watch.View{Directory: grace.Directory{Present: true}} })
		r.hv.Restart(domain)
		r.run()
		r.after(time.Hour)
		if n := r.hv.Count(fake.OpSignal, domain); n != 0 {
			t.Error("a deadline of another boot hit a new VM")
		}
		if rec, _ := r.cache.get(domain); rec.BootID != "next boot" || rec.ShuttingDown() {
			t.Errorf("the new VM's record: %+v", rec)
		}
	})
}

func TestARestartedDomainIsLeftAlone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		r.trigger(domain)
		r.after(10 * second)
		asked := r.hv.Count(fake.OpAsk, domain)
		again := r.hv.Restart(domain)
		r.after(time.Hour)
		if r.hv.Count(fake.OpSignal, domain) != 0 || r.hv.Count(fake.OpDestroy, domain) != 0 || r.hv.Count(fake.OpAsk, domain) != asked {
			t.Error("the new instance was asked or destroyed for the old one")
		}
		if rec, _ := r.cache.get(domain); rec.Instance != again || rec.ShuttingDown() {
			t.Errorf("the new instance is not guarded: %+v", rec)
		}
	})
}

func TestATriggerThatCannotBeRemovedHarmsNoLaterInstance(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Presses: 1}, "30")
		r.dir(domain).breaks(nil, true)
		r.trigger(domain)
		r.after(10 * second)
		r.hv.Start(fake.Guest{Name: domain})
		r.after(time.Hour)
		if n := r.hv.Count(fake.OpSignal, domain); n != 0 {
			t.Error("the consumed trigger ended the next instance")
		}
	})
}

func TestAHungDomainDelaysNoOther(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.dir("ns_hung")
		r.restart()
		r.guarded(fake.Guest{Name: "ns_hung", Frozen: true}, "20")
		r.guarded(fake.Guest{Name: domain, Presses: 1, ShutsDown: second}, "20")
		for _, op := range []fake.Op{fake.OpAsk, fake.OpGet, fake.OpDestroy} {
			defer r.hv.Hang(op, "ns_hung")()
		}
		defer r.hv.Hang(fake.OpList, "")()
		begin := time.Since(r.start)
		r.trigger("ns_hung")
		r.trigger(domain)
		r.after(2 * second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Graceful)
		r.after(minute)
		if got, want := r.when(fake.OpSignal, "ns_hung"), []time.Duration{begin + 20*second, begin + 30*second}; !slices.Equal(got, want) {
			t.Errorf("the hung domain was signalled at %v, want %v", got, want)
		}
		if !r.agent.Alive() {
			t.Error("a hung domain makes the agent look stuck")
		}
	})
}

func TestWithLibvirtDownTheDeadlineHolds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		r.hv.Down(true)
		r.restart()
		r.trigger(domain)
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{31 * second}; !slices.Equal(got, want) {
			t.Errorf("signalled at %v, want %v", got, want)
		}
	})
}

func TestAfterAnOutageOfLibvirtTheGuestIsAskedWithoutDelay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Presses: 1}, "30")
		r.hv.Down(true)
		r.trigger(domain)
		r.after(10 * second)
		r.hv.Down(false)
		r.after(second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Graceful)
	})
}

func TestAHungGuestAgentLeavesTimeForACPI(t *testing.T) {
	inBubble(t, func(r *rig) {
		// The request by the agent hangs; the button works.
		r.guarded(fake.Guest{Name: domain, Agent: true, Presses: 2, AskTakes: 0}, "10")
		r.trigger(domain)
		r.after(6 * second)
		var modes []grace.Mode
		for _, c := range r.hv.Calls() {
			if c.Op == fake.OpAsk {
				modes = append(modes, c.Mode)
			}
		}
		if want := []grace.Mode{grace.ModeAgent, grace.ModeACPI}; !slices.Equal(modes, want) {
			t.Errorf("asked by %v, want %v", modes, want)
		}
		r.stoppedAs(domain, grace.LauncherSignal, grace.Graceful)
	})
}

func TestAPausedGuestIsResumedFirst(t *testing.T) {
	for _, p := range []grace.Power{grace.PowerPaused, grace.PowerSuspended} {
		inBubble(t, func(r *rig) {
			r.guarded(fake.Guest{Name: domain, Presses: 1}, "30")
			r.hv.SetPower(domain, p)
			r.after(second)
			r.trigger(domain)
			r.after(2 * second)
			r.stoppedAs(domain, grace.LauncherSignal, grace.Graceful)
			if n := r.hv.Count(fake.OpResume, domain); n != 1 {
				t.Errorf("%s: resumed %d times", p, n)
			}
		})
	}
}

func TestAGuestHeldByAnIOErrorIsDestroyedAtItsDeadline(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Presses: 1}, "30")
		r.hv.SetPower(domain, grace.PowerPausedOther)
		r.after(second)
		r.trigger(domain)
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		if r.hv.Count(fake.OpResume, domain) != 0 {
			t.Error("resumed")
		}
		if n := r.hv.Count(fake.OpGet, domain); n < 6 {
			t.Errorf("looked at %d times in 30 s", n)
		}
	})
}

func TestAFrozenQEMUGetsSIGKILLAfterTheDestroyTimeout(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Frozen: true}, "30")
		r.trigger(domain)
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{31 * second, 41 * second}; !slices.Equal(got, want) {
			t.Errorf("signals at %v, want %v", got, want)
		}
	})
}

func TestAnUnkillableQEMUIsReportedOnceAndTriedOnSlowly(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain, Unkillable: true}, "30")
		r.trigger(domain)
		r.after(time.Hour)
		if n := r.meter.of("destroyed failed"); n != 1 {
			t.Errorf("reported %d times, want once", n)
		}
		if s := r.dir(domain).said(); s.Phase != grace.Destroying {
			t.Errorf("status.json says %s", s.Phase)
		}
		if n := len(r.when(fake.OpSignal, domain)); n < 60 || n > 200 {
			t.Errorf("%d signals in an hour, want about one each half minute", n)
		}
		if r.hv.Count(fake.OpDestroy, domain) == 0 {
			t.Error("libvirt was never asked to destroy it")
		}
		r.hv.End(domain, grace.EndDestroyed)
		r.after(second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}

func TestAnInstanceWhoseProcessIsUnknownIsDestroyedByLibvirt(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.hv.Start(fake.Guest{Name: domain, Unidentified: true})
		r.after(12 * second) // it may still turn out which process it is
		r.trigger(domain)
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		if r.meter.of("destroyed libvirt") != 1 || r.meter.of("destroyed signal") != 0 {
			t.Errorf("%v", r.meter.counts)
		}
	})
}

func TestADryRunDoesNothingAndBindsNobody(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.policy.DryRun = true
		r.run()
		r.guarded(fake.Guest{Name: domain}, "30")
		r.trigger(domain)
		r.after(time.Hour)
		if r.hv.Count(fake.OpAsk, domain) != 0 || r.hv.Count(fake.OpSignal, domain) != 0 {
			t.Error("a dry run does something")
		}
		r.stop()
		r.policy.DryRun = false
		back := time.Since(r.start)
		r.run()
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		if got := r.when(fake.OpSignal, domain); len(got) != 1 || got[0] < back+30*second || got[0] > back+31*second {
			t.Errorf("signalled at %v; want a whole grace period after %v", got, back)
		}
	})
}

func TestAKilledShimTakesItsVMWithIt(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, shim := r.guarded(fake.Guest{Name: domain, Presses: 1}, "3600")
		r.set(domain, unlocked) // the kernel drops the lock
		_ = shim.Signal(unix.SIGKILL)
		r.after(100 * time.Millisecond)
		r.stoppedAs(domain, grace.LauncherDied, grace.Forced)
		if r.hv.Count(fake.OpAsk, domain) != 0 {
			t.Error("asked")
		}
	})
}

func TestAShimKilledWhileTheAgentWasDownIsNoticedOnItsReturn(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, shim := r.guarded(fake.Guest{Name: domain}, "3600")
		r.stop()
		r.set(domain, unlocked)
		_ = shim.Signal(unix.SIGKILL)
		r.run()
		r.after(100 * time.Millisecond)
		r.stoppedAs(domain, grace.LauncherDied, grace.Forced)
	})
}

func TestAnOrderlyEndIsNoDeathAlsoAcrossARestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, shim := r.guarded(fake.Guest{Name: domain}, "3600")
		r.set(domain, func(v *watch.View) { *v = watch.View{Directory: grace.Directory{Present: true}} })
		_ = shim.Signal(unix.SIGKILL)
		r.after(minute)
		r.restart()
		r.after(minute)
		if n := r.hv.Count(fake.OpSignal, domain); n != 0 {
			t.Error("an orderly end was taken for a death")
		}
	})
}

func TestAShimOfAnEarlierInstanceDoesNotCount(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, shim := r.guarded(fake.Guest{Name: domain}, "3600")
		r.hv.End(domain, grace.EndGuest)
		r.after(minute)
		r.set(domain, unlocked)
		_ = shim.Signal(unix.SIGKILL)
		r.after(second)
		r.hv.Start(fake.Guest{Name: domain})
		r.after(minute)
		if n := r.hv.Count(fake.OpSignal, domain); n != 0 {
			t.Error("a new VM was destroyed for a launcher that was never its own")
		}
	})
}

func TestALockThatCannotBeWatchedIsLookedAtInstead(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.hv.Start(fake.Guest{Name: domain})
		r.change(domain, func(v *watch.View) { v.Registered, v.Locked, v.Holder.PID, v.Holder.File = true, true, 0, 77 })
		r.after(5 * second)
		r.set(domain, unlocked)
		r.after(second)
		r.stoppedAs(domain, grace.LauncherDied, grace.Forced)
	})
}

func TestAnEndThatLibvirtDoesNotExplainIsLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "3600")
		r.trigger(domain)
		r.hv.Down(true)
		r.hv.End(domain, grace.EndUnknown)
		r.after(10 * second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Lost)
	})
}

func TestDomainsWithoutALauncherDirectoryAreNotOurs(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.hv.Start(fake.Guest{Name: "ns_stranger"})
		r.hv.Start(fake.Guest{Name: "no-namespace"})
		r.after(time.Hour)
		if rec := r.cache.all(); len(rec) != 0 {
			t.Errorf("recorded: %v", rec)
		}
		if n := r.agent.Phases()[grace.Running]; n != 0 {
			t.Errorf("%d VMs counted", n)
		}
	})
}

func TestKeepersOfRemovedLaunchersEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 100 {
			name := fmt.Sprintf("ns_vm%d", i)
			r.change(name, func(*watch.View) {})
			r.after(second)
			r.change(name, func(v *watch.View) { *v = watch.View{} })
			r.after(second)
		}
		if n := len(r.agent.keepers); n != 1 {
			t.Errorf("%d keepers are left, want the one whose directory is there", n)
		}
	})
}

func TestAWrongNameIsCountedOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		for range 10 {
			r.agent.LauncherChanged("Not A Name")
			r.agent.LauncherChanged("ns_" + strings.Repeat("a", 245))
		}
		synctest.Wait()
		if n := r.meter.of("rejected name"); n != 2 {
			t.Errorf("counted %d times, want once each", n)
		}
	})
}

func TestADirectoryThatCannotBeReadKeepsWhatIsKnown(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "45")
		r.dir(domain).breaks(errors.New("input/output error"), false)
		r.agent.LauncherChanged(domain)
		r.after(minute)
		if rec, _ := r.cache.get(domain); rec.Period.Length != 45*second {
			t.Errorf("grace period is now %v", rec.Period.Length)
		}
		if n := r.hv.Count(fake.OpSignal, domain); n != 0 {
			t.Error("an error was taken for a death")
		}
	})
}
