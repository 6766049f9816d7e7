package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// stage is the node.T of the demo, in place of a test.
type stage struct {
	ctx context.Context
	out screen

	mu       sync.Mutex
	err      error
	cleanups []func()
}

// play runs f and then the cleanups, the last one first. It returns the error of Fatalf.
func (s *stage) play(f func()) error {
	done := make(chan struct{})
	go func() { // Fatalf ends the goroutine that calls it
		defer close(done)
		f()
	}()
	<-done
	for _, cleanup := range slices.Backward(s.cleanups) {
		cleanup()
	}
	return s.err
}

func (s *stage) Helper() {}

func (s *stage) Context() context.Context { return s.ctx }

func (s *stage) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// Logf prints what the cleanups know of a failure. After Ctrl-C nobody needs that.
func (s *stage) Logf(format string, args ...any) {
	if s.ctx.Err() == nil {
		s.out.say("", fmt.Sprintf(format, args...))
	}
}

func (s *stage) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if s.ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	runtime.Goexit()
}
