package inpod

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// answerTimeout is how long a launcher may take for one request. It gives its
// guest 4 s.
const answerTimeout = 10 * time.Second

// lookEvery is how often to look for an answer without an event.
const lookEvery = time.Second

var errNoAnswer = fmt.Errorf("the launcher has not answered in %v", answerTimeout)

// ask writes a request and waits for its answer. A guest whose process ends meanwhile
// counts as asked. One request at a time is made, so that each is answered.
func (v *vm) ask(ctx context.Context, m grace.Mode) error {
	v.mu.Lock()
	hasAgent := v.agent
	v.mu.Unlock()
	if m == grace.ModeAgent && !hasAgent {
		return hypervisor.ErrNoAgent
	}
	bound, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	select {
	case v.asking <- struct{}{}:
		defer func() { <-v.asking }()
	case <-bound.Done():
		return context.Cause(bound)
	}
	n, err := v.write(bound, m)
	if err != nil {
		return err
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		v.mu.Lock()
		answered, result, news, p := v.answered >= n, v.result, v.news, v.process
		v.mu.Unlock()
		switch {
		case answered:
			return failure(result)
		case p == nil || p.Gone():
			return nil
		}
		select {
		case <-news:
		case <-p.Done():
		case <-look.C:
			_ = within(bound, func() error { _, err := v.Look(); return err }) // the next one may work
		case <-bound.Done():
			return context.Cause(bound)
		}
	}
}

// failure returns why the launcher could not ask the guest.
func failure(result string) error {
	switch {
	case result == signals.ResultOK:
		return nil
	case strings.HasPrefix(result, signals.ResultBusy):
		return fmt.Errorf("the launcher could not ask the guest: %w: %.200q", hypervisor.ErrBusy, result)
	case strings.HasPrefix(result, signals.ResultRefused):
		return hypervisor.Refused(strings.TrimPrefix(result, signals.ResultRefused))
	default:
		return fmt.Errorf("the launcher could not ask the guest: %.200q", result)
	}
}

// write makes the next request for a shutdown.
func (v *vm) write(ctx context.Context, m grace.Mode) (n uint64, err error) {
	return v.put(ctx, func() uint64 {
		v.request, v.by = max(v.request+1, elapsed()), ""
		if m == grace.ModeAgent {
			v.by = m
		}
		return v.request
	})
}

// put notes a request, and puts it into status.json.
func (v *vm) put(ctx context.Context, note func() (n uint64)) (n uint64, err error) {
	select {
	case v.writing <- struct{}{}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if _, runs := v.known(); !runs { // the next instance must not hear it
		<-v.writing
		return 0, hypervisor.ErrNotFound
	}
	v.mu.Lock()
	n = note()
	s := v.status
	if s.Phase == "" || s.UID == "" { // the agent has said nothing yet that the launcher takes for its own
		s = grace.Status{UID: v.uid, Phase: grace.Running}
		if v.request > 0 {
			s.Phase = grace.ShuttingDown
		}
	}
	s = v.withRequests(s)
	v.mu.Unlock()
	return n, within(ctx, func() error {
		defer func() { <-v.writing }()
		return v.Directory.WriteStatus(s)
	})
}

// withRequests returns a status with the last request of each kind. The caller holds the lock.
func (v *vm) withRequests(s grace.Status) grace.Status {
	s.Request, s.RequestBy, s.Migration = v.request, v.by, v.moves.asked
	return s
}

// elapsed returns the time since the boot in milliseconds. So a restarted agent goes on
// above the earlier agent's numbers without knowing them.
func elapsed() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // every kernel with pidfds has it
	return uint64(t.Nano() / int64(time.Millisecond))
}
