package podcondition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// api has launcher pods, and counts the writes.
type api struct {
	mu     sync.Mutex
	pods   []Pod
	err    error
	hangs  bool
	writes int
}

func (a *api) Launchers() []Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.pods)
}

// with changes the API server.
func (a *api) with(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *api) SetShuttingDown(ctx context.Context, p Pod, is Condition) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes++
	if a.hangs {
		a.mu.Unlock()
		<-ctx.Done()
		a.mu.Lock()
		return ctx.Err()
	}
	for i := range a.pods {
		if a.err == nil && a.pods[i].UID == p.UID {
			a.pods[i].Shown = is
		}
	}
	return a.err
}

// lines counts the lines of a log.
type lines struct{ atomic.Int32 }

func (l *lines) Write(line []byte) (int, error) {
	l.Add(1)
	return len(line), nil
}

func deadline() time.Time { return time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC) }

func summary(phase grace.Phase) grace.Summary {
	return grace.Summary{Phase: phase, Pod: "u", Cause: grace.VMIDeleted, DeadlineAt: deadline(), Period: 30 * time.Second}
}

func TestTheConditionSaysPhaseCauseAndDeadline(t *testing.T) {
	const message = " deadline=2026-03-01T12:00:30Z gracePeriodSeconds=30"
	down := Condition{"True", "VMIDeleted", "phase=ShuttingDown" + message}
	other, none := summary(grace.ShuttingDown), Condition{}
	other.Pod = "another"
	for name, c := range map[string]struct {
		s    grace.Summary
		p    Pod
		want Condition
	}{
		"it runs":                      {summary(grace.Running), Pod{}, none},
		"it shuts down":                {summary(grace.ShuttingDown), Pod{}, down},
		"the same is not written":      {summary(grace.ShuttingDown), Pod{Shown: down}, none},
		"its deadline is over":         {summary(grace.Destroying), Pod{Shown: down}, none},
		"it is held":                   {summary(grace.Held), Pod{}, Condition{"True", "VMIDeleted", "phase=Held" + message}},
		"it is not held any more":      {summary(grace.Running), Pod{Shown: down}, Condition{Status: "False", Reason: "NotShuttingDown"}},
		"there is no record":           {grace.Summary{Pod: "u"}, Pod{Shown: down}, none},
		"its launcher is another pod":  {other, Pod{}, none},
		"the pod has ended":            {summary(grace.ShuttingDown), Pod{Done: true}, none},
		"somebody else has written it": {summary(grace.ShuttingDown), Pod{Shown: Condition{"True", "Forged", "x"}}, down},
	} {
		c.p.UID = "u"
		if got, write := Wanted(c.s, c.p); got != c.want && write || write != (c.want != none) {
			t.Errorf("%s: %+v, %v", name, got, write)
		}
	}
}

// Given VMs that all shut down at once. When the agent says so again and again, then each pod
// is written once, and no more than the limit in each second.
func TestWritesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		for i := range 50 {
			a.pods = append(a.pods, Pod{UID: fmt.Sprint(i), Domain: fmt.Sprint(i)})
		}
		c := New(a, func(domain string) grace.Summary {
			s := summary(grace.ShuttingDown)
			s.Pod = domain
			return s
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		go c.Run(ctx)
		<-time.After(debounce)
		synctest.Wait()
		if a.writes != burst {
			t.Errorf("%d writes at once, want %d", a.writes, burst)
		}
		for range 100 {
			<-time.After(100 * time.Millisecond)
			c.Changed()
		}
		synctest.Wait()
		if a.writes != len(a.pods) {
			t.Errorf("%d writes of %d pods", a.writes, len(a.pods))
		}
		cancel()
		synctest.Wait()
	})
}

// Given an API server that refuses. Then the write is tried again, at an interval, until it
// succeeds.
func TestAFailedWriteIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{pods: []Pod{{UID: "u"}}, err: errors.New("refused")}
		var log lines
		c := New(a, func(string) grace.Summary { return summary(grace.ShuttingDown) }, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		go c.Run(ctx)
		<-time.After(debounce)
		synctest.Wait()
		if log.Load() > 0 {
			t.Error("logged at once, though the pod may only be gone")
		}
		<-time.After(3 * retryInterval)
		synctest.Wait()
		if a.writes != 4 || log.Load() != 1 {
			t.Errorf("%d writes, want 4, and %d lines of the log, want 1", a.writes, log.Load())
		}
		a.with(func() { a.err = nil })
		<-time.After(5 * retryInterval)
		synctest.Wait()
		if a.writes != 5 || a.pods[0].Shown.Status != "True" {
			t.Errorf("%d writes, the pod shows %+v", a.writes, a.pods[0].Shown)
		}
		cancel()
		synctest.Wait()
	})
}

// Given changes that never cease. When a VM shuts down among them, then its pod is written
// within the debounce, and not when they have ceased.
func TestChangesDoNotPutAWriteOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{pods: []Pod{{UID: "u"}}}
		c := New(a, func(string) grace.Summary { return summary(grace.ShuttingDown) }, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		go c.Run(ctx)
		for range 3 {
			c.Changed()
			<-time.After(debounce / 2)
		}
		synctest.Wait()
		if a.writes != 1 {
			t.Errorf("%d writes, want 1", a.writes)
		}
		cancel()
		synctest.Wait()
	})
}

// Given an API server that does not answer. When shutdowns begin, change and end, then nobody
// who says so waits; when the server answers, each pod gets what is known by then, once.
func TestAnOutageHoldsNobodyUpAndTheLatestIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{pods: []Pod{{UID: "u"}}, hangs: true}
		known := atomic.Pointer[grace.Summary]{}
		known.Store(new(summary(grace.ShuttingDown)))
		c := New(a, func(string) grace.Summary { return *known.Load() }, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		go c.Run(ctx)
		for i := range 100 {
			<-time.After(time.Second)
			from := time.Now()
			is := summary(grace.ShuttingDown)
			is.DeadlineAt = deadline().Add(time.Duration(i) * time.Second)
			known.Store(&is)
			c.Changed()
			if took := time.Since(from); took != 0 {
				t.Fatalf("who tells of a change waits %v", took)
			}
		}
		synctest.Wait()
		a.with(func() { a.hangs, a.writes = false, 0 })
		<-time.After(apiTimeout + retryInterval)
		synctest.Wait()
		if want := shutdown(*known.Load()); a.writes != 1 || a.pods[0].Shown != want {
			t.Errorf("%d writes, the pod shows %+v, want %+v once", a.writes, a.pods[0].Shown, want)
		}
		cancel()
		synctest.Wait()
	})
}
