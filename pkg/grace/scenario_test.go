package grace

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world simulates a VM, a disk and a libvirt with random behaviour around decide, in
// virtual time. It checks the promises at every step.
type world struct {
	t      *rapid.T
	r      Record
	o      observation
	p      Policy
	now    Mono
	disk   Record // what is durable
	events []event

	deaf, diskFails bool
	diskTakes       time.Duration
	killable        bool
	asks            []Mono
	termAt, killAt  Mono
	begunAt         Mono
	finished        Outcome
}

type event struct {
	at Mono
	do func()
}

func (w *world) after(d time.Duration, do func()) {
	w.events = append(w.events, event{w.now.Add(d), do})
}

func (w *world) end(e End) {
	if !w.o.Gone {
		w.o.Gone, w.o.GoneAt, w.o.End = true, w.now, e
	}
}

func (w *world) start(c *Call) { c.Running, c.Last = true, w.now; c.Tries++ }

func (w *world) act(d Decision) {
	switch d.Do {
	case Begin:
		w.begunAt = d.When
		if w.r.ShuttingDown() {
			w.t.Fatalf("a second grace period begins by %q", d.Rule)
		}
		w.r.begin(d.Cause, d.When, time.Unix(0, 0), false)
		w.o.Unsaved = true
	case Shorten:
		w.r.shorten(d.When)
	case Save:
		w.start(&w.o.Save)
		rec := w.r
		w.after(w.diskTakes, func() {
			w.o.Save.Running, w.o.Save.Failed = false, w.diskFails
			if !w.diskFails {
				w.disk = rec
				w.o.Unsaved = w.disk != w.r
			}
		})
	case Look:
		w.start(&w.o.Look)
		w.after(time.Millisecond, func() { w.o.Look.Running = false })
	case Ask:
		w.checkAsk()
		c := &w.o.AskACPI
		if d.Mode == ModeAgent {
			c = &w.o.AskAgent
		}
		w.start(c)
		w.after(time.Millisecond, func() {
			c.Running = false
			w.r.Shutdown.Requested = true
			if !w.deaf {
				w.end(EndGuest)
			}
		})
	case Inspect:
		w.start(&w.o.Inspect)
		w.o.Inspect.Running = false
	case Resume:
		w.start(&w.o.Resume)
		w.o.Resume.Running, w.o.Power = false, PowerOn
	case Terminate:
		if w.now < w.r.Shutdown.Deadline {
			w.t.Fatalf("SIGTERM %v before the deadline", w.r.Shutdown.Deadline.Sub(w.now))
		}
		w.termAt = w.now
		w.start(&w.o.Term)
		w.o.Term.Running, w.r.Shutdown.Signalled = false, true
	case Kill:
		if w.now < w.termAt.Add(w.p.DestroyTimeout) {
			w.t.Fatalf("SIGKILL %v after SIGTERM", w.now.Sub(w.termAt))
		}
		w.start(&w.o.Kill)
		w.o.Kill.Running, w.killAt = false, w.now
		if w.killable {
			w.end(EndDestroyed)
		}
	case Destroy:
		w.start(&w.o.Destroy)
		w.after(40*time.Second, func() { w.o.Destroy.Running, w.o.Destroy.Failed = false, true })
	case ReportFailed:
		w.o.Reported = true
	case Explain:
		w.start(&w.o.Explain)
		w.after(time.Millisecond, func() { w.o.Explain.Running = false })
	case Announce:
		w.o.Announced = true
	case Finish:
		w.finished = d.Outcome
	default:
		w.t.Fatalf("%s by %q has no place here", d.Do, d.Rule)
	}
}

func (w *world) checkAsk() {
	switch {
	case w.now >= w.r.Shutdown.Deadline:
		w.t.Fatal("asked after the deadline")
	case w.o.Unsaved && !w.o.Save.Failed && !w.r.Shutdown.Requested && w.now < w.begunAt.Add(saveTimeout):
		w.t.Fatal("asked before the record was durable")
	case w.disk.Shutdown.Deadline != 0 && w.disk.Shutdown.Deadline != w.r.Shutdown.Deadline && w.o.Shim != shimDied:
		w.t.Fatal("the durable deadline is another one")
	}
	w.asks = append(w.asks, w.now)
}

// run plays until the end, or until the limit.
func (w *world) run(limit Mono) {
	for steps := 0; w.finished == "" && w.now < limit; steps++ {
		if steps > 100_000 {
			w.t.Fatal("the rules did not converge")
		}
		d := decide(&w.r, &w.o, &w.p, w.now)
		if d.Do != Wait {
			w.act(d)
			continue
		}
		at, which := d.At, -1
		for i, e := range w.events {
			if e.at <= at {
				at, which = e.at, i
			}
		}
		if at == Never {
			w.t.Fatalf("sleeps for ever by rule %q with a shutdown under way", d.Rule)
		}
		if at < w.now {
			w.t.Fatalf("rule %q wants to look in the past", d.Rule)
		}
		w.now = at
		if which >= 0 {
			e := w.events[which]
			w.events = append(w.events[:which], w.events[which+1:]...)
			e.do()
		}
	}
}

func TestPromisesHoldInRandomWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "grace period"))
		r, o := guarded(length)
		w := &world{t: t, r: r, o: o, p: policy, now: t0, disk: r,
			deaf:      rapid.Bool().Draw(t, "deaf"),
			diskFails: rapid.Bool().Draw(t, "disk fails"),
			diskTakes: time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "disk takes")),
			killable:  rapid.Bool().Draw(t, "killable"),
		}
		w.o.Agent = rapid.Bool().Draw(t, "guest agent")
		w.o.Power = rapid.SampledFrom([]Power{PowerOn, PowerUnknown, PowerPaused, PowerPausedOther, PowerSuspended, PowerEnding}).Draw(t, "power")
		w.o.Trigger, w.o.TriggerAt = true, t0
		shimDies := rapid.Bool().Draw(t, "shim dies")
		if shimDies {
			w.after(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "shim dies after")), func() { w.o.Shim = shimDied })
		}
		w.run(t0.Add(2 * time.Hour))

		switch {
		// A shim that dies may leave no time for a request.
		case w.finished == "" && (w.killable || !w.deaf && !shimDies && w.o.Power == PowerOn && length > 10*time.Second):
			t.Fatal("the VM did not end")
		case w.finished == "" && !w.o.Reported:
			t.Fatal("a VM that cannot be killed was not reported")
		case w.finished == Forced && w.termAt == 0:
			t.Fatal("forced without a signal")
		case length == 0 && len(w.asks) > 0:
			t.Fatal("a grace period of 0 was asked first")
		}
		// One write may be under way, and another one follows when the shim dies.
		if w.termAt != 0 && w.termAt > w.r.Shutdown.Deadline.Add(2*saveDeadlineTimeout) {
			t.Fatalf("SIGTERM %v after the deadline", w.termAt.Sub(w.r.Shutdown.Deadline))
		}
		for i := 1; i < len(w.asks); i++ {
			if gap := w.asks[i].Sub(w.asks[i-1]); gap < failedRetry && w.o.AskAgent.Tries == 0 {
				t.Fatalf("asked again after %v", gap)
			}
		}
	})
}
