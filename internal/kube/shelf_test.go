package kube

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memoryShelf is a shelf whose disk can fail.
type memoryShelf struct {
	mu    sync.Mutex
	files map[string][]byte
	fails error
}

func (s *memoryShelf) Put(name string, content []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails == nil {
		s.files[name] = content
	}
	return s.fails
}

func (s *memoryShelf) Delete(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	return nil
}

func (s *memoryShelf) All() ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.files)), nil
}

func (s *memoryShelf) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files)
}

// office is an outbox that delivers to an API server in the test's hands.
type office struct {
	*outbox
	mu   sync.Mutex
	down bool
	told []string
	stop func()
}

func newOffice(s Shelf, down bool) *office {
	ctx, cancel := context.WithCancel(context.Background())
	o := &office{outbox: newOutbox(slog.New(slog.DiscardHandler), s), down: down}
	var running sync.WaitGroup
	running.Go(func() { o.deliver(ctx, o.post) })
	running.Go(func() { o.keep(ctx) })
	o.stop = func() { cancel(); running.Wait() }
	return o
}

func (o *office) post(_ context.Context, e Event) (verdict, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return again, errors.New("down")
	}
	o.told = append(o.told, e.Reason)
	return told, nil
}

func event(reason string, after time.Duration) Event {
	return Event{Namespace: "ns", Name: "vm", UID: "uid", Reason: reason, Key: "k", At: time.Unix(1000, 0).Add(after).UTC()}
}

func TestEventsThatWaitOutliveTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memoryShelf{files: map[string][]byte{}}
		// Given: an agent whose API server is down, for which each Event is settled
		// within a second.
		first := newOffice(s, true)
		for i, reason := range []string{"ShutdownStarted", "ShutdownForced"} {
			first.add(event(reason, time.Duration(i)*time.Second))
			begin := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			first.settle(ctx, "ns", "vm")
			cancel()
			if took := time.Since(begin); took > time.Second {
				t.Errorf("%s is settled after %v", reason, took)
			}
		}
		// When it ends and another one finds the API server back.
		first.stop()
		second := newOffice(s, false)
		sleep(t.Context(), time.Minute)
		second.stop()
		if want := []string{"ShutdownStarted", "ShutdownForced"}; !slices.Equal(second.told, want) {
			t.Errorf("told %v, want %v", second.told, want)
		}
		if n := s.count(); n != 0 {
			t.Errorf("%d Events that were told are still kept", n)
		}
	})
}

func TestAnEventThatIsToldAtOnceNeverReachesTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memoryShelf{files: map[string][]byte{}, fails: errors.New("nobody should write")}
		o := newOffice(s, false)
		defer o.stop()
		o.add(event("ShutdownStarted", 0))
		synctest.Wait()
		o.settle(t.Context(), "ns", "vm")
		sleep(t.Context(), time.Minute)
		if len(o.told) != 1 || s.count() != 0 {
			t.Errorf("told %v, kept %d", o.told, s.count())
		}
	})
}

func TestADiskThatFailsHoldsUpNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memoryShelf{files: map[string][]byte{}, fails: errors.New("no space")}
		o := newOffice(s, true)
		defer o.stop()
		o.add(event("ShutdownStarted", 0))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		o.settle(ctx, "ns", "vm") // comes back with ctx
		o.mu.Lock()
		o.down = false
		o.mu.Unlock()
		sleep(t.Context(), time.Minute)
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.told) != 1 {
			t.Errorf("told %v", o.told)
		}
	})
}

func TestAnEventThatIsDroppedLeavesTheShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Given: an API server that is down, and an Event on the shelf.
		s := &memoryShelf{files: map[string][]byte{}}
		o := newOffice(s, true)
		first := event("ShutdownStarted", 0)
		o.add(first)
		sleep(t.Context(), time.Second)
		// When so many others wait that it is dropped.
		for i := range maxQueue {
			e := event("ShutdownStarted", 0)
			e.Key = strconv.Itoa(i)
			o.add(e)
		}
		sleep(t.Context(), time.Second)
		o.stop()
		// Then: its place is another's.
		if s.files[first.name()] != nil || s.count() != maxQueue {
			t.Errorf("%d Events are kept, the dropped one too: %t", s.count(), s.files[first.name()] != nil)
		}
	})
}
