package agent

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

// In doubt: a process without a known start time, a trigger that names a VM
// of which nothing is known yet, a trigger that comes in place of another.

func TestARecordWithoutAStartTimeIsIdentifiedAnew(t *testing.T) {
	for name, begun := range map[string]bool{"at rest": false, "in mid-grace": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				i, _ := r.guarded(fake.Guest{Name: domain}, "30")
				at := r.Now()
				if begun {
					r.trigger(domain)
				}
				r.after(time.Second)
				r.stop()
				// Given: /proc could not be read when the record was written, and the pid
				// in it is another process's.
				stranger := r.hv.StartProcess("stranger")
				rec, _ := r.record()
				rec.Instance.PID, rec.Instance.Start = stranger.PID(), 0
				r.cache.records[domain] = rec
				r.run()
				r.after(time.Second)
				if rec, _ := r.record(); rec.Instance != i || rec.Period.Length != 30*time.Second {
					t.Errorf("%+v; want instance %+v", rec, i)
				}
				if !begun {
					at = r.Now()
					r.trigger(domain)
				}
				r.startedAs(grace.LauncherSignal, at, 30*time.Second)
				r.after(time.Minute)
				r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
				select {
				case <-stranger.Done():
					t.Error("a process that only had the pid was signalled")
				default:
				}
			})
		})
	}
}

func TestALateRemovalOfATriggerSaysNothingOfTheNext(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Given: two leftovers, one after the other, that cannot be removed, on a slow disk.
		r.guarded(fake.Guest{Name: domain}, "30")
		d := r.dir(domain)
		d.slow.Store(int64(10 * time.Second))
		d.breaks(nil, true)
		for n := range uint64(2) {
			r.change(domain, func(v *watch.View) {
				v.Trigger, v.TriggerUID, v.TriggerID = true, "another", grace.TriggerID{Inode: n + 1}
			})
			r.after(time.Second)
		}
		// When the first one's removal has failed, and the directory is looked at.
		r.after(10 * time.Second)
		r.change(domain, func(*watch.View) {})
		r.after(time.Minute)
		// Then: each was counted once, and is ignored.
		r.untouched()
		if n := r.meter.of("rejected trigger_uid"); n != 2 {
			t.Errorf("%d leftovers were counted", n)
		}
	})
}

func TestATriggerThatComesWhileTheEndIsToldStays(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "5")
		next := grace.TriggerID{Inode: 4711}
		r.dir(domain).told = func(v *watch.View, s grace.Status) {
			if s.Phase == grace.Stopped {
				v.TriggerID = next // of the same VM, by rename
			}
		}
		r.trigger(domain)
		r.after(6 * second) // one grace period later it would go, too: no domain came
		if v := r.dir(domain).look(); !v.Trigger || v.TriggerID != next {
			t.Errorf("%+v; want the second trigger", v)
		}
	})
}
