package kube

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// labelRig is a NodeLabel whose Node is a variable.
type labelRig struct {
	*NodeLabel
	begin time.Time

	takesNow atomic.Bool
	mu       sync.Mutex
	is       bool
	err      error
	asked    []time.Duration // since begin
	log      strings.Builder
}

// newLabelRig returns one whose agent may take migrations.
func newLabelRig() *labelRig {
	r := &labelRig{begin: time.Now()}
	r.NodeLabel = &NodeLabel{takes: r.takesNow.Load, now: func() grace.Mono { return grace.Mono(time.Since(r.begin)) }, log: slog.New(slog.NewTextHandler(&r.log, nil)), changed: make(chan struct{}, 1)}
	r.set = func(_ context.Context, value string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, time.Since(r.begin))
		if r.err == nil {
			r.is = value == "true"
		}
		return r.err
	}
	return r
}

func (r *labelRig) becomes(takes bool) {
	r.takesNow.Store(takes)
	r.Changed()
}

// node changes the Node, or the answer of the API server.
func (r *labelRig) node(is bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.is, r.err = is, err
}

// after returns what the Node has after a time.
func (r *labelRig) after(d time.Duration) (is bool, asked []time.Duration) {
	<-time.After(d)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.is, slices.Clone(r.asked)
}

// labelling runs a NodeLabel in a bubble whose time does not depend on the machine.
func labelling(t *testing.T, given func(r *labelRig), then func(r *labelRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := newLabelRig()
		given(r)
		ended := make(chan struct{})
		go func() { defer close(ended); r.Run(ctx) }()
		then(r)
		cancel()
		<-ended
	})
}

func TestTheLabelComesWithTheCertificateAndIsMended(t *testing.T) {
	labelling(t, func(*labelRig) {}, func(r *labelRig) {
		if _, asked := r.after(30 * time.Second); len(asked) > 0 {
			t.Errorf("asked at %v, before it is known whether it takes migrations", asked)
		}
		r.becomes(true)
		if is, asked := r.after(0); !is || len(asked) != 1 {
			t.Errorf("label %v, asked at %v", is, asked)
		}
		r.node(false, nil) // an administrator removes it, or the Node is made anew
		if is, asked := r.after(6 * time.Minute); !is || len(asked) != 2 {
			t.Errorf("label %v, asked at %v: not mended", is, asked)
		}
		if _, asked := r.after(time.Hour); len(asked) > 2+12 {
			t.Errorf("asked %d times in an hour", len(asked))
		}
	})
}

func TestTheLabelStaysWhileAnAgentRestarts(t *testing.T) {
	labelling(t, func(r *labelRig) { r.is = true }, func(r *labelRig) {
		if is, asked := r.after(59 * time.Second); !is || len(asked) > 0 {
			t.Errorf("label %v, asked at %v", is, asked)
		}
		r.becomes(true)
		if is, _ := r.after(time.Hour); !is {
			t.Error("it is gone")
		}
	})
}

func TestAnAgentThatTakesNoneRemovesTheLabel(t *testing.T) {
	// It never gets a certificate.
	labelling(t, func(r *labelRig) { r.is = true }, func(r *labelRig) {
		if is, _ := r.after(61 * time.Second); is {
			t.Error("it is there after a minute without a certificate")
		}
	})
	// It cannot for less than a minute, and then for longer.
	labelling(t, func(r *labelRig) { r.takesNow.Store(true) }, func(r *labelRig) {
		r.after(time.Hour)
		r.becomes(false)
		r.after(59 * time.Second)
		r.becomes(true)
		r.after(59 * time.Second)
		r.becomes(false)
		if is, _ := r.after(59 * time.Second); !is {
			t.Error("it is gone after less than a minute")
		}
		if is, _ := r.after(2 * time.Second); is {
			t.Error("it is there after a minute")
		}
	})
	// Its certificate expires, which nobody tells it.
	labelling(t, func(r *labelRig) { r.takesNow.Store(true) }, func(r *labelRig) {
		if is, _ := r.after(time.Minute); !is {
			t.Error("it is not set")
		}
		r.takesNow.Store(false)
		if is, _ := r.after(7 * time.Minute); is {
			t.Error("it is there after the certificate has expired")
		}
	})
	// Migrations are off.
	labelling(t, func(r *labelRig) { r.is, r.takes = true, nil }, func(r *labelRig) {
		if is, asked := r.after(0); is || len(asked) != 1 {
			t.Errorf("label %v, asked at %v", is, asked)
		}
	})
}

func TestALabelThatIsRefusedIsTriedAgainMoreSlowly(t *testing.T) {
	no := errors.New("forbidden")
	labelling(t, func(r *labelRig) { r.err = no; r.takesNow.Store(true) }, func(r *labelRig) {
		if _, asked := r.after(time.Minute); len(asked) < 4 || len(asked) > 7 {
			t.Errorf("asked at %v", asked)
		}
		_, before := r.after(29 * time.Minute)
		if len(before) > 16 {
			t.Errorf("asked %d times in half an hour", len(before))
		}
		if n := strings.Count(r.log.String(), "cannot be kept"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		r.node(false, nil)
		is, before := r.after(8 * time.Minute)
		if !is {
			t.Error("it is not set after the end of the refusal")
		}
		// The next failure begins anew.
		r.node(false, no)
		_, asked := r.after(6 * time.Minute)
		if next := asked[len(before):]; len(next) < 2 || next[1]-next[0] > 2*time.Second {
			t.Errorf("asked at %v", next)
		}
	})
}
