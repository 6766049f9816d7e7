package hold

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

const (
	uid    = "00000000-0000-4000-8000-000000000001"
	vmiUID = "00000000-0000-4000-8000-0000000000aa"
	domain = "ns_vm"
	boot   = "boot-1"
)

var errDown = errors.New("the API server is down")

// rig is a node with one launcher and its agent. A hook waits for the agent's word.
type rig struct {
	*testing.T
	clock  bubbleClock
	keeper *Keeper
	stop   func()

	mu sync.Mutex
	// shown is what the watches show. live is the pod as the API server has it, fate that of the
	// VMI. down: it does not answer.
	shown   []Launcher
	vm      VM
	live    *Launcher
	fate    grace.Fate
	moves   bool
	down    bool
	slow    time.Duration // its answers about pods
	events  []agent.Event
	ended   []Outcome
	dir     watch.HoldView
	records map[string]grace.Record
	disk    func() // called by each write
	removal func() // called by each removal
	refuses int    // so many answers fail
}

type bubbleClock struct{ begin time.Time }

func (c bubbleClock) Now() grace.Mono { return grace.Mono(time.Hour + time.Since(c.begin)) }
func (bubbleClock) Wall() time.Time   { return time.Now() }

// given starts an agent whose launcher may be held for two minutes, of a pod that lives on for
// five after its deletion. Its VM needs 90 s.
func given(t *testing.T, story func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, clock: bubbleClock{time.Now()}, records: map[string]grace.Record{}, fate: grace.FateHere, disk: func() {}, removal: func() {}}
		r.dir.Present = true
		r.vm = VM{VMI: grace.VMI{State: grace.VMIPresent, UID: vmiUID, Created: time.Unix(1000, 0), Grace: "60", DeletingAt: grace.Never}}
		r.shown = []Launcher{{Namespace: "ns", Name: "virt-launcher-vm-1", VM: "vm", Hook: true, Pod: grace.Pod{
			UID: uid, VMI: vmiUID, Created: time.Unix(1000, 0), GracePeriod: 5 * time.Minute, Holdable: true,
			Reserve: 90 * time.Second, Padding: 30 * time.Second, Allowance: 2 * time.Minute, DeletingAt: grace.Never, KillAt: grace.Never,
		}}}
		r.start()
		story(r)
		r.stop()
	})
}

func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.Context())
	r.keeper = New(Config{
		BootID: boot, Cluster: r, Records: r, Clock: r.clock, Log: slog.New(slog.DiscardHandler),
		Directory: func(string, string, string) Directory { return r },
		Watch:     func(string, string, string) {}, Unwatch: func(string) {},
		Ended: func(how Outcome) { r.change(func() { r.ended = append(r.ended, how) }) },
	})
	r.mu.Lock()
	var known []grace.Record
	for _, rec := range r.records {
		known = append(known, rec)
	}
	r.mu.Unlock()
	r.keeper.Guard(known)
	done := make(chan error)
	go func() { done <- r.keeper.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.Error(err)
		}
	}
	synctest.Wait()
}

func (r *rig) restart() { r.stop(); r.start() }

// change changes the world and tells nobody.
func (r *rig) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// api changes what the watches show.
func (r *rig) api(do func()) {
	r.change(do)
	r.keeper.ClusterChanged("ns", "vm")
	synctest.Wait()
}

// signal runs the hook.
func (r *rig) signal() {
	r.change(func() { r.dir.Trigger = true })
	r.keeper.LauncherChanged(uid)
	synctest.Wait()
}

func (r *rig) after(d time.Duration) { <-time.After(d); synctest.Wait() }

// deleted is the pod after its deletion, for a reason.
func (r *rig) deleted(p Launcher, reason grace.Cause) Launcher {
	p.Deleting, p.HoldReason, p.DeletionGrace = true, reason, p.GracePeriod
	p.DeletingAt, p.KillAt, p.DeletedAt = r.clock.Now(), r.clock.Now().Add(p.GracePeriod), time.Now()
	return p
}

// preempted deletes the pod and runs the hook.
func (r *rig) preempted(marked bool) {
	r.api(func() {
		r.shown[0] = r.deleted(r.shown[0], grace.PreemptionByScheduler)
		r.vm.Marked = marked
	})
	r.signal()
}

func (r *rig) want(what string, held, answered bool) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir.Held != held || r.dir.Answered != answered {
		r.Errorf("%s: held %v, answered %v; want %v, %v", what, r.dir.Held, r.dir.Answered, held, answered)
	}
}

func (r *rig) wantEnd(how Outcome) {
	r.Helper()
	r.want(string(how), false, true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ended) != 1 || r.ended[0] != how || len(r.records) != 0 {
		r.Errorf("ended %v, want %s; records %v", r.ended, how, r.records)
	}
}

func (r *rig) Launchers() []Launcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Launcher{}, r.shown...)
}

func (r *rig) VM(string, string) VM {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.vm
}

func (r *rig) Launcher(ctx context.Context, _, _ string) (Launcher, error) {
	r.mu.Lock()
	down, live, slow := r.down, r.live, r.slow
	r.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return Launcher{}, ctx.Err()
	}
	switch {
	case down:
		<-ctx.Done()
		return Launcher{}, errDown
	case live == nil:
		return r.Launchers()[0], nil
	default:
		return *live, nil
	}
}

func (r *rig) Moves(context.Context, string, string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return false, errDown
	}
	return r.moves, nil
}

func (r *rig) Confirm(ctx context.Context, _, _, _ string, _ time.Time) (grace.Fate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return grace.FateUnknown, errDown
	}
	return r.fate, nil
}

func (r *rig) Report(e agent.Event) { r.change(func() { r.events = append(r.events, e) }) }

func (r *rig) LookAtHold() (watch.HoldView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dir, nil
}

func (r *rig) Hold() error    { return r.answer(true) }
func (r *rig) Release() error { return r.answer(false) }

func (r *rig) answer(held bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.dir.Present {
		return fs.ErrNotExist
	}
	if r.refuses > 0 {
		r.refuses--
		return errors.New("no space left on device")
	}
	r.dir.Held, r.dir.Answered = held, true
	return nil
}

func (r *rig) Put(rec grace.Record) error {
	r.disk()
	r.change(func() { r.records[rec.Domain()] = rec })
	return nil
}

func (r *rig) Delete(domain string) error {
	r.disk()
	r.removal()
	r.change(func() { delete(r.records, domain) })
	return nil
}
