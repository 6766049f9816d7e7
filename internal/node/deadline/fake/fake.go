// Package fake is package deadline with the timers of Go's runtime, and so with virtual
// time in a testing/synctest bubble.
package fake

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/deadline"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Process is a process to signal.
type Process interface{ Signal(s unix.Signal) error }

// Armed has the methods of *deadline.Armed.
type Armed struct {
	now    func() grace.Mono
	report chan deadline.Sent

	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

// Arm sends SIGTERM to p at a time of the clock now.
func Arm(p Process, at grace.Mono, now func() grace.Mono) *Armed {
	a := &Armed{now: now, report: make(chan deadline.Sent, 1)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(max(at.Sub(now()), 0), func() {
		if a.end() {
			err := p.Signal(unix.SIGTERM)
			a.report <- deadline.Sent{At: now(), Err: err}
		}
	})
	return a
}

func (a *Armed) end() (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first = !a.over
	a.over = true
	return first
}

// Move changes the time of the signal.
func (a *Armed) Move(to grace.Mono) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.timer.Reset(max(to.Sub(a.now()), 0))
	}
}

// Disarm returns false if the signal is sent or being sent.
func (a *Armed) Disarm() bool { return a.end() }

// Sent gives one value, once the signal was tried.
func (a *Armed) Sent() <-chan deadline.Sent { return a.report }
