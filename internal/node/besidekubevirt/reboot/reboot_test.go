package reboot

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// rig is a node with launchers, and logind.
type rig struct {
	*testing.T
	begin time.Time
	state chan agent.NodeState
	stop  func()
	s     *Shutdown

	mu        sync.Mutex
	launchers map[string]Processes // by pod UID
	unlisted  bool
	hidden    error // Find fails
	started   map[Process]time.Time
	told      []int // pids
	refuses   int   // so many Terminates fail
	released  time.Duration
	events    []agent.Event
	changes   []bool
	kept      grace.NodeShutdownTime
}

func (r *rig) Now() grace.Mono { return grace.Mono(time.Hour + time.Since(r.begin)) }
func (*rig) Wall() time.Time   { return time.Now() }

func (r *rig) change(do func()) { r.mu.Lock(); defer r.mu.Unlock(); do() }

func (r *rig) Watch(ctx context.Context, report func(agent.NodeState)) {
	for {
		select {
		case s := <-r.state:
			report(s)
		case <-ctx.Done():
			return
		}
	}
}

func (r *rig) Release() { r.change(func() { r.released = time.Since(r.begin) }) }

func (r *rig) Find([]hold.Launcher) (map[string]Processes, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]Processes{}
	for uid, is := range r.launchers {
		all[uid] = is
	}
	return all, r.hidden
}

func (r *rig) Terminate(p Process) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuses > 0 {
		r.refuses--
		return errors.New("not permitted")
	}
	r.told = append(r.told, p.PID)
	return nil
}

func (r *rig) Age(p Process) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.started[p])
}

// given has two launchers on a node whose shutdown is delayed by a minute.
func given(t *testing.T, story func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, begin: time.Now(), state: make(chan agent.NodeState), launchers: map[string]Processes{}, started: map[Process]time.Time{}}
		r.launch("a", 1)
		r.launch("b", 3)
		r.start()
		r.report(agent.NodeState{Known: true, Held: true, Delay: time.Minute})
		story(r)
		r.stop()
	})
}

// launch starts a launcher with this pid, and its QEMU with the next one.
func (r *rig) launch(uid string, pid int) {
	r.change(func() {
		first, qemu := Process{pid, uint64(pid)}, Process{pid + 1, uint64(pid)}
		r.launchers[uid] = Processes{First: first, QEMUs: []Process{qemu}}
		r.started[first], r.started[qemu] = time.Now(), time.Now()
	})
}

func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.Context())
	r.s = New(Config{
		NodeConfig: agent.NodeConfig{
			Inhibitor: r, Clock: r, Log: slog.New(slog.DiscardHandler), Kept: r.kept,
			Report: func(e agent.Event) { r.change(func() { r.events = append(r.events, e) }) },
			Save:   func(to grace.NodeShutdownTime) error { r.change(func() { r.kept = to }); return nil },
		},
		Node: r,
		Launchers: func() (all []hold.Launcher, known bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for uid := range r.launchers {
				all = append(all, hold.Launcher{VM: uid, Pod: grace.Pod{UID: uid}})
			}
			return all, !r.unlisted
		},
		Longest: func() time.Duration { return 60 * time.Second },
		Begun:   func(underWay bool) { r.change(func() { r.changes = append(r.changes, underWay) }) },
	})
	done := make(chan struct{})
	go func() { defer close(done); r.s.Run(ctx, func() {}) }()
	r.stop = func() { cancel(); <-done }
	synctest.Wait()
}

func (r *rig) report(s agent.NodeState) { r.state <- s; synctest.Wait() }

func (r *rig) announce() {
	r.after(10 * time.Second)
	r.report(agent.NodeState{Known: true, Held: true, ShuttingDown: true, Delay: time.Minute})
	r.after(tick)
}

func (r *rig) after(d time.Duration) { <-time.After(d); synctest.Wait() }

// off ends the QEMU of a launcher, and the launcher with it.
func (r *rig) off(uid string) { r.change(func() { r.launchers[uid] = Processes{} }) }

func (r *rig) wantTold(pids ...int) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	times := map[int]int{}
	for _, pid := range r.told {
		times[pid]++
	}
	for _, pid := range pids {
		if times[pid] != 1 {
			r.Errorf("%d was told %d times", pid, times[pid])
		}
	}
	if len(r.told) != len(pids) {
		r.Errorf("told: %v, want %v", r.told, pids)
	}
}

func (r *rig) wantReleased(at time.Duration) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if late := r.released - at; r.released == 0 != (at == 0) || late < 0 || late > 2*tick {
		r.Errorf("released after %v, want %v", r.released, at)
	}
}

func TestANodeWaitsForTheGuestsThatRanWhenItsShutdownWasAnnounced(t *testing.T) {
	given(t, func(r *rig) {
		r.announce()
		r.wantTold(1, 3)
		r.off("a")
		r.after(5 * time.Second)
		r.launch("late", 5) // started again: told, and not waited for
		r.after(5 * time.Second)
		r.wantTold(1, 3, 5)
		r.wantReleased(0)
		r.off("b")
		r.after(time.Second)
		r.wantReleased(20*time.Second + tick)
		if len(r.changes) != 1 || !r.changes[0] {
			t.Errorf("changes: %v", r.changes)
		}
	})
}

func TestANodeWaitsNoLongerThanLogindDoes(t *testing.T) {
	given(t, func(r *rig) {
		r.announce()
		r.after(2 * time.Minute)
		r.wantTold(1, 3)
		r.wantReleased(70 * time.Second)
	})
}

func TestWhatCannotBeSeenIsNotGone(t *testing.T) {
	for name, hide := range map[string]func(r *rig, hidden bool){
		"the processes": func(r *rig, hidden bool) {
			if r.hidden = nil; hidden {
				r.hidden = errors.New("no /proc")
			}
		},
		"the launchers": func(r *rig, hidden bool) { r.unlisted = hidden },
	} {
		t.Run(name, func(t *testing.T) {
			given(t, func(r *rig) {
				r.off("a")
				r.off("b")
				r.change(func() { hide(r, true) })
				r.announce()
				r.after(10 * time.Second)
				r.wantReleased(0)
				r.change(func() { hide(r, false) })
				r.after(tick)
				r.wantReleased(20*time.Second + tick)
			})
		})
	}
}

func TestALauncherThatCannotBeToldIsToldAgain(t *testing.T) {
	given(t, func(r *rig) {
		r.refuses = 3
		r.announce()
		r.after(time.Second)
		r.wantTold(1, 3)
	})
}

// An agent that starts in the middle knows which guests ran at the announcement, and when the
// time is over. Launchers that are told again take no harm.
func TestAShutdownSurvivesTheAgent(t *testing.T) {
	given(t, func(r *rig) {
		r.announce()
		r.after(10 * time.Second)
		r.stop()
		r.kept.Kept = true
		r.launch("late", 5)
		r.start()
		r.after(time.Second)
		r.wantTold(1, 3) // logind has not said that the node still shuts down
		r.report(agent.NodeState{Known: true, ShuttingDown: true, Delay: time.Minute})
		r.after(tick)
		r.wantReleased(0)
		r.after(2 * time.Minute)
		r.wantReleased(70 * time.Second)
		if r.told = r.told[2:]; true {
			r.wantTold(1, 3, 5)
		}
	})
}

func TestAShutdownThatIsCalledOff(t *testing.T) {
	given(t, func(r *rig) {
		r.announce()
		r.report(agent.NodeState{Known: true, Held: true, Delay: time.Minute})
		r.launch("late", 5)
		r.after(2 * time.Minute)
		r.wantTold(1, 3)
		r.wantReleased(0)
		if r.kept.UnderWay() || len(r.changes) != 2 || r.changes[1] {
			t.Errorf("kept %+v, changes %v", r.kept, r.changes)
		}
	})
}

// Given a shutdown that an earlier agent has kept, and that was called off since, when an agent
// starts, then no launcher is told and no hold ends, whenever logind speaks.
func TestAShutdownThatWasCalledOffMeanwhile(t *testing.T) {
	given(t, func(r *rig) {
		r.announce()
		r.stop()
		r.kept.Kept, r.told, r.changes = true, nil, nil
		r.start()
		r.after(10 * time.Second)
		r.wantTold()
		if len(r.changes) != 0 {
			t.Errorf("changes: %v", r.changes)
		}
		r.report(agent.NodeState{Known: true, Held: true, Delay: time.Minute})
		r.after(2 * time.Minute)
		r.wantTold()
		r.wantReleased(0)
		if r.kept != (grace.NodeShutdownTime{}) {
			t.Errorf("kept %+v", r.kept)
		}
	})
}

// Given a shutdown that does not end, then launchers that come are told on, and an Event says so once.
func TestAShutdownThatHangsIsSaid(t *testing.T) {
	given(t, func(r *rig) {
		r.announce()
		r.after(100 * time.Second)
		before := len(r.events)
		r.launch("late", 5)
		r.after(time.Hour)
		r.wantTold(1, 3, 5)
		if n := len(r.events); n != before+1 || !r.events[before].OfNode || r.events[before].Reason != "ShutdownHangs" {
			t.Errorf("%+v", r.events)
		}
	})
}

func TestADelayThatIsTooShortIsSaidOnce(t *testing.T) {
	given(t, func(r *rig) {
		r.report(agent.NodeState{Known: true, Held: true, Delay: 63 * time.Second, Lengthening: true})
		r.report(agent.NodeState{Known: true, Held: true, Delay: 64 * time.Second})
		r.after(time.Hour)
		if n := len(r.events); n != 2 || r.events[1].Reason != "ShutdownDelayTooShort" || !r.events[1].OfNode || !strings.Contains(r.events[1].Message, "1m4s at most, and they need 1m5s") {
			t.Errorf("%+v", r.events)
		}
		if v := r.s.View(); !v.Held || v.Delay != 64*time.Second || v.Needed != 65*time.Second {
			t.Errorf("%+v", v)
		}
	})
}

func TestWithoutVirtHandlerNobodyAsksTheGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, begin: time.Now()}
		runs, failed := true, error(nil)
		h := NewHandler(func(context.Context) (bool, error) { return runs, failed },
			func(e agent.Event) { r.events = append(r.events, e) }, r, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.Run(ctx) }()
		for _, step := range []struct {
			runs, down  bool
			failed      error
			want, known bool
			events      int
		}{
			{true, false, nil, true, true, 0},
			{true, true, nil, true, true, 0},
			{false, false, nil, false, true, 0}, // it may be updated
			{false, true, errors.New("down"), false, false, 0},
			{false, true, nil, false, true, 1},
			{false, true, nil, false, true, 1},
			{false, false, nil, false, true, 1},
			{false, true, nil, false, true, 2},
		} {
			synctest.Wait() // it may be asking
			runs, failed = step.runs, step.failed
			h.Announced(step.down)
			synctest.Wait()
			if is, known := h.Runs(); is != step.want || known != step.known || len(r.events) != step.events {
				t.Errorf("%+v: %v, %v, %d Events", step, is, known, len(r.events))
			}
			<-time.After(time.Second)
		}
		if e := r.events[0]; !e.OfNode || !e.Warning || e.Reason != "GuestsNotAsked" || e.Key == r.events[1].Key {
			t.Errorf("%+v", e)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
