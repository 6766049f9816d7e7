// Package priority gets the agent a core at once in the few milliseconds in
// which that counts: around a deadline.
//
// A deadline that many VMs have wakes as many QEMUs, which all want a core, and
// a full node has none to spare: the scheduler is fair to all of them, and the
// agent is one of many. For that long its threads are real-time ones (SCHED_RR,
// sched(7)), which go first. Not always: what tenants make the agent do must
// not take cores from others.
package priority

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Where the threads of this process are, see proc(5).
const threads = "/proc/self/task"

// retry is how soon threads get what they could not be given.
const retry = time.Second

// maxPasses bounds the search for threads that were made meanwhile: each gets
// the priority of the one that makes it.
const maxPasses = 10

// Threads are all threads of this process.
type Threads struct {
	log    *slog.Logger
	now    func() grace.Mono
	change chan struct{}
	told   bool // that it cannot be done; only Run touches it

	mu    sync.Mutex
	first map[*grace.Mono]struct{} // until when somebody needs it
}

// New returns the threads of this process. They stay as they are until Run.
func New(now func() grace.Mono, log *slog.Logger) *Threads {
	return &Threads{log: log, now: now, change: make(chan struct{}, 1), first: map[*grace.Mono]struct{}{}}
}

// First has the threads go before those of others until then, or until done is
// called. Neither blocks; both may be called from any goroutine, done again, too.
func (t *Threads) First(until grace.Mono) (done func()) {
	t.mu.Lock()
	t.first[&until] = struct{}{}
	t.mu.Unlock()
	t.changed()
	return func() {
		t.mu.Lock()
		delete(t.first, &until)
		last := len(t.first) == 0
		t.mu.Unlock()
		if last {
			t.changed()
		}
	}
}

func (t *Threads) changed() {
	select {
	case t.change <- struct{}{}:
	default: // it is on its way
	}
}

// left is when to ask again while somebody needs the threads to go first, 0
// if nobody does.
func (t *Threads) left() (left time.Duration) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for until := range t.first {
		switch own := until.Sub(now); {
		case own <= 0:
			delete(t.first, until)
		case left == 0 || own < left:
			left = own
		}
	}
	return left
}

// Run changes the priority when that is due, until ctx ends. Where the kernel
// refuses that it says so once: then deadlines are as late as the node is full.
// A process that somebody has given another policy than the usual one keeps it.
func (t *Threads) Run(ctx context.Context) {
	usual, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.refused(fmt.Errorf("sched_getattr: %w", err))
		return
	}
	if usual.Policy != unix.SCHED_NORMAL {
		t.log.Debug("the scheduling policy is left as it is", "policy", usual.Policy)
		return
	}
	first := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for has := usual; ; {
		over := ctx.Err() != nil // asked once: what is given must not outlive it
		left, want := t.left(), usual
		if left > 0 && !over {
			want = first
		}
		if has != want {
			has = t.give(want)
		}
		if over {
			return
		}
		if has == nil {
			left = retry
		}
		if left > 0 {
			timer.Reset(left)
		}
		select {
		case <-ctx.Done():
		case <-t.change:
		case <-timer.C:
		}
	}
}

// give returns what all threads have now, nil if that is not the same.
func (t *Threads) give(want *unix.SchedAttr) (has *unix.SchedAttr) {
	first := want.Policy != unix.SCHED_NORMAL
	if first {
		t.log.Debug("going before others for a deadline")
	}
	switch err := set(want); {
	case err == nil:
		return want
	case first:
		t.refused(err)
	default:
		t.log.Error("some threads of the agent still go before others after a deadline; trying again", "err", err)
	}
	return nil
}

// refused says it once.
func (t *Threads) refused(err error) {
	if !t.told {
		t.log.Warn("cannot go before others at deadlines: on a node without a free core they may be late; a larger CPU request helps", "err", err)
	}
	t.told = true
}

// set gives all threads a policy.
func set(want *unix.SchedAttr) error {
	for range maxPasses {
		changed, err := pass(want)
		if err != nil || !changed {
			return err
		}
	}
	return errors.New("new threads are made all the time")
}

func pass(want *unix.SchedAttr) (changed bool, err error) {
	dir, err := os.Open(threads)
	if err != nil {
		return false, fmt.Errorf("threads of this process: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return false, fmt.Errorf("threads of this process: %w", err)
	}
	for _, name := range names {
		id, err := strconv.Atoi(name)
		if err != nil {
			return changed, fmt.Errorf("%s: %w", threads, err)
		}
		has, err := unix.SchedGetAttr(id, 0)
		if err == nil && has.Policy != want.Policy {
			changed = true
			err = unix.SchedSetAttr(id, want, 0)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return changed, fmt.Errorf("sched_setattr: %w", err)
		}
	}
	return changed, nil
}
