package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
)

// stage is the node.T of one row: it takes the place of a test.
type stage struct {
	ctx context.Context //nolint:containedctx // of the run, as a test's is

	mu       sync.Mutex
	err      error
	cleanups []func()
}

// play runs f and then the cleanups, the last one first. It returns the error of f and of
// the cleanups.
func (s *stage) play(f func()) error {
	s.apart(f)
	for _, cleanup := range slices.Backward(s.cleanups) {
		s.apart(cleanup)
	}
	return s.err
}

// apart runs f in a goroutine of its own and waits for it, because Fatalf ends the
// goroutine that calls it.
func (s *stage) apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (s *stage) Helper() {}

func (s *stage) Context() context.Context { return s.ctx }

func (s *stage) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

func (s *stage) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

func (s *stage) Fatalf(format string, args ...any) {
	s.mu.Lock()
	s.err = errors.Join(s.err, fmt.Errorf(format, args...))
	s.mu.Unlock()
	runtime.Goexit()
}
