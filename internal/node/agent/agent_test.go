package agent

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

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
