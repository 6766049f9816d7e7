package agent

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

var errDisk = errors.New("no space left on device")

func (r *rig) ready(want bool, when string) {
	r.t.Helper()
	if r.agent.Ready() != want {
		r.t.Errorf("%s: ready is %v, want %v", when, !want, want)
	}
}

// written returns how often records were written.
func (c *memoryCache) written() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.puts
}

// forget plays the deletion of the state directory.
func (c *memoryCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.records)
}

func TestReadinessFollowsTheDisk(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		r.cache.fail(errDisk)
		r.after(20 * second)
		r.ready(true, "nothing to write")
		r.trigger(domain)
		r.ready(false, "the record cannot be written")
		r.after(10 * second)
		r.ready(false, "still not")
		if !r.agent.Alive() {
			t.Error("a bad disk is no reason to restart the agent")
		}
		r.cache.fail(nil)
		r.after(2 * second)
		r.ready(true, "written")
		if n := r.meter.of("rejected record_write"); n != 1 {
			t.Errorf("counted %d times, want once", n)
		}
	})
}

func TestADiskThatHangsIsNoReadyOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		r.cache.hangs()
		r.trigger(domain)
		r.after(20 * second)
		r.ready(false, "the disk hangs")
		if n := r.hv.Count(fake.OpAsk, domain); n == 0 {
			t.Error("a disk that hangs stops the shutdown")
		}
	})
}

func TestARecordThatCannotBeRemovedGoesWhenItCan(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "3")
		r.trigger(domain)
		r.cache.fail(errDisk)
		r.after(10 * second)
		if s := r.dir(domain).said(); s.Phase != grace.Stopped {
			t.Fatalf("status.json: %s, want Stopped", s.Phase)
		}
		r.ready(false, "a record is left")
		r.cache.fail(nil)
		r.after(2 * second)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		r.ready(true, "it is gone")
	})
}

func TestARecordLeftBehindIsNotRemovedFromUnderTheNextInstance(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "3")
		r.trigger(domain)
		r.cache.fail(errDisk)
		r.after(10 * second)
		next := r.hv.Start(fake.Guest{Name: domain})
		r.after(15 * second)
		r.cache.fail(nil)
		r.after(5 * second)
		if rec, ok := r.cache.get(domain); !ok || rec.Instance != next || rec.ShuttingDown() {
			t.Errorf("the next instance's record: %+v, %v", rec, ok)
		}
		r.ready(true, "all is written")
	})
}

func TestWhatTheCacheHasLostIsPutAgain(t *testing.T) {
	const resting = "ns_resting"
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		r.dir(resting)
		r.guarded(fake.Guest{Name: resting}, "60")
		r.trigger(domain)
		r.after(second)
		before := r.cache.all()
		r.cache.forget()
		r.agent.SaveAgain()
		r.after(time.Millisecond)
		after := r.cache.all()
		if len(before) != 2 || len(after) != 2 {
			t.Fatalf("%d records before, %d after", len(before), len(after))
		}
		for _, rec := range before {
			if again, _ := r.cache.get(rec.Domain()); again != rec {
				t.Errorf("%s: %+v became %+v", rec.Domain(), rec, again)
			}
		}
	})
}

func TestAnAgentThatStartsOnABadDiskSaysSoAndKeepsTheDeadline(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		r.trigger(domain)
		r.after(second)
		rec, _ := r.cache.get(domain)
		r.cache.fail(errDisk)
		r.stop()
		r.run()
		r.agent.SaveAgain()
		r.after(second)
		r.ready(false, "the record cannot be written")
		if n := r.meter.of("rejected record_write"); n != 1 {
			t.Errorf("counted %d times, want once", n)
		}
		r.cache.fail(nil)
		r.after(2 * second)
		r.ready(true, "the disk is well again")
		r.after(30 * second)
		if got := r.when(fake.OpSignal, domain); len(got) == 0 || grace.Mono(time.Hour+got[0]) != rec.Shutdown.Deadline {
			t.Errorf("signalled at %v, want %v", got, rec.Shutdown.Deadline)
		}
	})
}

func TestWhatOnlyNamesTheOutcomeIsWrittenLater(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: a deaf guest that was asked; its shutdown is on disk.
		r.guarded(fake.Guest{Name: domain}, "60")
		r.trigger(domain)
		if rec, _ := r.record(); !rec.ShuttingDown() || rec.Shutdown.Requested {
			t.Errorf("at once: %+v", rec.Shutdown)
		}
		// Then: the note of the request is saved later, after other saves.
		r.after(2 * second)
		if rec, _ := r.record(); !rec.Shutdown.Requested {
			t.Errorf("after 2 s: %+v", rec.Shutdown)
		}
	})
}

func TestADiskThatRefusesANoteIsNotReady(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "60")
		r.trigger(domain)
		r.cache.fail(errDisk)
		r.after(2 * second)
		r.ready(false, "the note cannot be written")
		r.cache.fail(nil)
		r.after(2 * second)
		r.ready(true, "written")
		if rec, _ := r.record(); !rec.Shutdown.Requested {
			t.Errorf("%+v", rec.Shutdown)
		}
	})
}

// editing changes the stated grace periods each 50 ms.
func (r *rig) editing(names []string, during time.Duration) {
	r.t.Helper()
	for n := range int(during / (50 * time.Millisecond)) {
		for _, name := range names {
			r.set(name, func(v *watch.View) { v.Grace = strconv.Itoa(100 + n) })
			r.agent.LauncherChanged(name)
		}
		r.after(50 * time.Millisecond)
	}
}

func TestATenantThatEditsItsGracePeriodCostsOneSaveASecond(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		before := r.cache.written()
		// When: its grace period changes all the time.
		r.editing([]string{domain}, minute)
		// Then: the disk gets some of the changes, and in the end the last one.
		if n := r.cache.written() - before; n < 30 || n > 61 {
			t.Errorf("%d saves in a minute", n)
		}
		r.after(2 * second)
		if rec, _ := r.cache.get(domain); rec.Period.Length != (100+1199)*time.Second {
			t.Errorf("the record says %v", rec.Period.Length)
		}
		// When: a shutdown begins in the middle of that, it waits for nothing.
		r.editing([]string{domain}, second/2)
		began := time.Since(r.start)
		r.trigger(domain)
		if at := r.when(fake.OpAsk, domain); len(at) == 0 || at[0] > began+10*time.Millisecond {
			t.Errorf("asked at %v, the trigger came at %v", at, began)
		}
		if rec, _ := r.cache.get(domain); !rec.ShuttingDown() {
			t.Error("it is not on disk")
		}
	})
}

func TestManyTenantsTogetherCostTheDiskTenSavesASecond(t *testing.T) {
	inBubble(t, func(r *rig) {
		var names []string
		for n := range 60 {
			name := "ns_vm" + strconv.Itoa(n)
			names = append(names, name)
			r.guarded(fake.Guest{Name: name}, "30")
		}
		before := r.cache.written()
		r.editing(names, minute)
		if n := r.cache.written() - before; n < 550 || n > 610+saveBurst {
			t.Errorf("%d saves in a minute", n)
		}
		r.after(20 * second)
		for _, name := range names {
			if rec, _ := r.cache.get(name); rec.Period.Length != (100+1199)*time.Second {
				t.Errorf("%s: the record says %v", name, rec.Period.Length)
			}
		}
	})
}
