package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

const milli = time.Millisecond

// storm changes a launcher directory 1,000 times a second.
func (r *rig) storm(lasts time.Duration, change func(i int, v *watch.View)) {
	for i := range int(lasts / milli) {
		r.set(domain, func(v *watch.View) { change(i, v) })
		r.agent.LauncherChanged(domain)
		r.after(milli)
	}
	synctest.Wait()
}

func TestTheLastOfAStormIsSeen(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.guarded(fake.Guest{Name: domain}, "30")
		r.storm(second+30*milli, func(int, *watch.View) {})
		r.trigger(domain)
		r.after((100 * time.Millisecond))
		if n := r.hv.Count(fake.OpAsk, domain); n != 1 {
			t.Errorf("asked %d times within %v", n, (100 * time.Millisecond))
		}
	})
}

func TestAKeeperThatOwesALookDoesNotEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.hv.Down(true)
		r.restart()
		r.storm(second, func(_ int, v *watch.View) { v.Present = false })
		r.set(domain, func(v *watch.View) { v.Present = true })
		r.agent.LauncherChanged(domain)
		r.hv.Down(false)
		r.agent.DomainChanged(hypervisor.Event{Name: domain}) // now it is known that there is no domain
		r.after(second)
		if n := len(r.agent.keepers); n != 1 {
			t.Errorf("%d keepers: the directory that came back is not seen", n)
		}
	})
}

// logging restarts the agent with a log that the test reads.
func (r *rig) logging() *bytes.Buffer {
	text := &bytes.Buffer{}
	r.log = slog.NewTextHandler(text, nil)
	r.restart()
	return text
}

func TestNoTenantFloodsTheLog(t *testing.T) {
	long := strings.Repeat("x", 60_000)
	for name, change := range map[string]func(i int, v *watch.View){
		"bad files": func(i int, v *watch.View) {
			v.Rejected = []watch.Rejection{{Reason: watch.ReasonVMFile, Err: fmt.Errorf("%d %s", i, long)}}
		},
		"grace periods": func(i int, v *watch.View) { v.Grace = fmt.Sprintf("-%d%s", i, strings.Repeat("0", 30_000)) },
		"leftovers": func(i int, v *watch.View) {
			v.Trigger, v.TriggerUID, v.TriggerID = true, long, grace.TriggerID{Inode: uint64(i) + 1}
		},
		"identities": func(i int, v *watch.View) { v.UID = fmt.Sprint(i) },
		"locks":      func(i int, v *watch.View) { v.Locked, v.Holder.File = i%2 == 1, uint64(i/2) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				text := r.logging()
				r.guarded(fake.Guest{Name: domain}, "30")
				r.storm(20*second, change)
				lines := strings.Count(text.String(), "\n")
				if lines > 40 || text.Len() > 40*1024 {
					t.Errorf("%d lines, %d bytes in 20 s:\n%.2000s", lines, text.Len(), text)
				}
			})
		})
	}
}

func TestATriggerWithoutAVMAgainAndAgainFloodsNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		text := r.logging()
		r.change(domain, func(v *watch.View) {
			v.Registered, v.Locked, v.UID, v.Readable, v.Grace = true, true, "u", true, "0"
		})
		r.storm(minute, func(i int, v *watch.View) { v.Trigger, v.TriggerID = true, grace.TriggerID{Inode: uint64(i) + 1} })
		if lines := strings.Count(text.String(), "\n"); lines > 40 {
			t.Errorf("%d lines in a minute:\n%.2000s", lines, text)
		}
	})
}

func TestAnErrorThatStaysIsSaidNowAndThen(t *testing.T) {
	inBubble(t, func(r *rig) {
		text := r.logging()
		r.guarded(fake.Guest{Name: domain}, "30")
		r.dir(domain).breaks(errors.New("input/output error"), false)
		r.agent.LauncherChanged(domain)
		r.after(10 * minute)
		if n := strings.Count(text.String(), "cannot read the launcher directory"); n < 15 || n > 25 {
			t.Errorf("said %d times in 10 minutes", n)
		}
		if !strings.Contains(text.String(), "leftOut=") {
			t.Error("it does not say how many lines were left out")
		}
	})
}

func TestNoiseDoesNotHideAShutdownInTheLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		text := r.logging()
		r.guarded(fake.Guest{Name: domain}, "30")
		r.storm(minute, func(i int, v *watch.View) {
			v.Rejected = []watch.Rejection{{Reason: watch.ReasonVMFile, Err: fmt.Errorf("%d", i)}}
		})
		r.trigger(domain)
		r.after(minute)
		r.stoppedAs(domain, grace.LauncherSignal, grace.Forced)
		for _, said := range []string{"shutdown begins", "the guest is destroyed", "stopped"} {
			if !strings.Contains(text.String(), `msg="`+said+`"`) && !strings.Contains(text.String(), "msg="+said) {
				t.Errorf("the log does not say %q", said)
			}
		}
	})
}
