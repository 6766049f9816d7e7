package agent

import (
	"errors"
	"strconv"
	"testing"
	"time"

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
