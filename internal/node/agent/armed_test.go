package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

// blockingLog blocks once it is full, like a pipe that nobody reads.
type blockingLog struct {
	slog.Handler
	full *atomic.Bool
	read chan struct{}
}

func newBlockingLog() blockingLog {
	return blockingLog{slog.DiscardHandler, &atomic.Bool{}, make(chan struct{})}
}

func (b blockingLog) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelDebug }

func (b blockingLog) Handle(context.Context, slog.Record) error {
	if b.full.Load() {
		<-b.read
	}
	return nil
}

func (b blockingLog) WithAttrs([]slog.Attr) slog.Handler { return b }

func TestAKeeperThatIsStuckDoesNotHoldUpItsDeadline(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: a keeper that hangs as soon as it logs that the shutdown begins.
		log := newBlockingLog()
		r.log = log
		r.restart()
		r.guarded(fake.Guest{Name: domain}, "4")
		log.full.Store(true)
		// When: the grace period passes.
		begun := time.Since(r.start)
		r.set(domain, func(v *watch.View) { v.Trigger, v.TriggerID = true, grace.TriggerID{Inode: 5} })
		r.agent.LauncherChanged(domain)
		r.after(minute)
		// Then: SIGTERM was sent at its end.
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{begun + 4*second}; !slices.Equal(got, want) {
			t.Errorf("signalled at %v, want %v", got, want)
		}
		close(log.read)
		synctest.Wait()
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}

func TestASignalThatTheKeeperHasNotHeardOfYetIsForced(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: a keeper that is stuck while its VM is signalled and then ends.
		log := newBlockingLog()
		r.log = log
		r.restart()
		r.guarded(fake.Guest{Name: domain, Exits: second}, "10")
		log.full.Store(true)
		r.trigger(domain)
		r.after(10 * second)
		r.hv.End(domain, grace.EndGuest)
		// When: it goes on, and sees the end first or the signal.
		close(log.read)
		r.after(minute)
		// Then: the end was the agent's.
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}

func TestWhereNothingCanBeArmedTheKeeperSignals(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "10")
		r.full.Store(true)
		begun := time.Since(r.start)
		r.trigger(domain)
		r.after(minute)
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{begun + 10*second}; !slices.Equal(got, want) {
			t.Errorf("signalled at %v, want %v", got, want)
		}
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}

func TestARecordThatIsReadLateKeepsItsDeadline(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: a shutdown, and an agent that comes back and cannot read its record.
		r.guarded(fake.Guest{Name: domain}, "60")
		begun := time.Since(r.start)
		r.trigger(domain)
		r.after(20 * second)
		record, _ := r.cache.get(domain)
		r.stop()
		r.cache.take(domain)
		r.run()
		r.after(10 * second)
		if got := r.dir(domain).said(); got.Phase != grace.ShuttingDown {
			t.Fatalf("an agent that knows nothing begins anew: %+v", got)
		}
		// When: it can be read after all.
		r.agent.Guard([]grace.Record{record})
		r.after(2 * minute)
		// Then: its deadline counts.
		if got, want := r.when(fake.OpSignal, domain), []time.Duration{begun + 60*second}; !slices.Equal(got, want) {
			t.Errorf("signalled at %v, want %v", got, want)
		}
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}

func TestARecordThatIsReadAfterTheEndIsRemovedAndNotTold(t *testing.T) {
	for name, meanwhile := range map[string]func(*rig){
		"of its instance": func(*rig) {},
		"of its instance, whose pod is gone": func(r *rig) {
			r.change(domain, func(v *watch.View) { *v = watch.View{} })
		},
		"of the next instance": func(r *rig) {
			r.guarded(fake.Guest{Name: domain}, "10")
			r.trigger(domain)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				// Given: a shutdown, and an agent that comes back and cannot read its record.
				r.guarded(fake.Guest{Name: domain}, "60")
				r.trigger(domain)
				r.after(10 * second)
				record, _ := r.cache.get(domain)
				r.stop()
				r.cache.take(domain)
				r.unread = true
				r.run()
				r.after(2 * minute)
				meanwhile(r)
				r.after(2 * minute)
				told := r.meter.of("stopped LauncherSignal Forced")
				// When: it has shut the guest down, and then the record can be read.
				if err := r.cache.Put(record); err != nil {
					t.Fatal(err)
				}
				r.agent.Guard([]grace.Record{record})
				r.after(10 * second)
				// Then: the report stays, nothing is reported again, the record goes.
				r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
				again, lost := r.meter.of("stopped LauncherSignal Forced"), r.meter.of("stopped LauncherSignal Lost")
				if told == 0 || again != told || lost != 0 {
					t.Errorf("told %d times, then %d times, and %d times as lost", told, again, lost)
				}
				r.change(domain, func(v *watch.View) { *v = watch.View{} })
				r.after(minute)
				if n := r.keepers(); n != 0 {
					t.Errorf("%d keepers are left of a VM that is gone", n)
				}
			})
		})
	}
}

func TestAKeeperThatWaitedForARecordLeavesWhenThereIsNone(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: an agent that cannot read its records, and a VM that came and went.
		r.stop()
		r.unread = true
		r.run()
		r.guarded(fake.Guest{Name: domain}, "10")
		r.trigger(domain)
		r.after(minute)
		r.change(domain, func(v *watch.View) { *v = watch.View{} })
		r.after(minute)
		if n := r.keepers(); n != 1 {
			t.Errorf("%d keepers, want the one that knows of the end", n)
		}
		// When: they are read, and there is none.
		r.agent.Guard(nil)
		r.after(second)
		if n := r.keepers(); n != 0 {
			t.Errorf("%d keepers are left", n)
		}
	})
}

// slowly makes the disk take that long for each record.
func (c *memoryCache) slowly(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes = d
}

func TestADeadlineOfNowWaitsAMomentForItsRecord(t *testing.T) {
	const ms = time.Millisecond
	for name, of := range map[string]struct{ disk, late time.Duration }{
		"a disk at work":      {5 * ms, 5 * ms},
		"a disk that is slow": {second, 20 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.guarded(fake.Guest{Name: domain}, "0")
				r.cache.slowly(of.disk)
				begun := time.Since(r.start)
				r.set(domain, func(v *watch.View) { v.Trigger, v.TriggerID = true, grace.TriggerID{Inode: 5} })
				r.agent.LauncherChanged(domain)
				r.after(5 * second)
				if got, want := r.when(fake.OpSignal, domain), []time.Duration{begun + of.late}; !slices.Equal(got, want) {
					t.Errorf("signalled at %v, want %v", got, want)
				}
			})
		})
	}
}

// Where the deadline's thread has no real-time priority, what else the agent does at that
// moment delays the signals of many VMs.
func TestTheAgentIsAtRestAtADeadline(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		r.trigger(domain)
		r.after(30*second - 350*time.Millisecond)
		// When the deadline comes, and its signal takes a while.
		r.sends.Store(int64(50 * time.Millisecond))
		before := r.reads.Load()
		r.after(399 * time.Millisecond)
		// Then: no keeper has woken.
		if n := r.reads.Load() - before; n != 0 {
			t.Errorf("the agent has read the clock %d times around the deadline", n)
		}
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
	})
}
