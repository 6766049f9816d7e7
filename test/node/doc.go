// Package node gives a test, or the demo, a node of its own: a libvirtd in a private mount
// namespace, real QEMU guests under emulation, and the two binaries of the project that run
// beside them. No other test and no libvirt of the machine notices what a test does to this
// node, not even when the test kills its libvirtd. When the process that started a node
// ends, for whatever reason, everything in the node is killed.
//
// The package does not import testing: T is what it needs of a *testing.T.
package node

import (
	"context"
	"time"
)

// T is the part of *testing.T that this package uses. Fatalf must not return.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(f func())
	Context() context.Context
}

// Eventually polls cond until it is true. It fails the test when cond is not true within
// the given time.
func Eventually(t T, within time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	if !Poll(t.Context(), within, cond) {
		t.Fatalf("not within %v: "+format, append([]any{within}, args...)...)
	}
}

// Never checks that cond stays false for the given time. It is for events that must not
// happen and therefore give no sign.
func Never(t T, within time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	if Poll(t.Context(), within, cond) {
		t.Fatalf("happened within %v: "+format, append([]any{within}, args...)...)
	}
}

// WaitUntil waits until the time at.
func WaitUntil(t T, at time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(at)):
	case <-t.Context().Done():
		t.Fatalf("interrupted before %v: %v", at, t.Context().Err())
	}
}

// Poll calls cond until it returns true, and then returns true. It returns false when the
// time or ctx is over. Poll sleeps as long as cond took, because a cond that runs a command
// would otherwise keep a core busy.
func Poll(ctx context.Context, within time.Duration, cond func() bool) bool {
	end := time.Now().Add(within)
	for {
		asked := time.Now()
		if cond() {
			return true
		}
		now := time.Now()
		if now.After(end) || ctx.Err() != nil {
			return false
		}
		time.Sleep(max(5*time.Millisecond, now.Sub(asked)))
	}
}
