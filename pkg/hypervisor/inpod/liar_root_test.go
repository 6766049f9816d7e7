//go:build !unit

package inpod

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

// liar states what a test wants in place of a launcher.
type liar struct {
	Directory

	pid atomic.Int64 // another pid; 0: the truth
}

func (l *liar) Look() (watch.View, error) {
	view, err := l.Directory.Look()
	if pid := l.pid.Load(); pid != 0 {
		view.PID = int(pid)
	}
	return view, err
}

// liedTo returns a driver of its own whose launcher is a liar. Each event leads to a
// question, as in the agent.
func liedTo(t *testing.T) (*vm, *liar) {
	t.Helper()
	w := given(t)
	domain, dir := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	there, ok := dir.(*vm)
	if !ok {
		t.Fatal("not a vm")
	}
	d, l := New(), &liar{Directory: there.Directory}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() {
		ran <- d.Run(ctx, func(e hypervisor.Event) {
			if e.Name == domain {
				_, _ = d.Get(ctx, domain) // it may not be there
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		kit.Must(t, <-ran)
		kit.Must(t, d.Close())
	})
	v, ok := d.Directory(domain, "", l).(*vm)
	if !ok {
		t.Fatal("not a vm")
	}
	return v, l
}

func TestATruthAfterManyLiesIsFoundWithoutAnotherHint(t *testing.T) {
	// Given: a launcher whose claims are not checked for a while.
	v, l := liedTo(t)
	told := map[string]int{}
	for n := range 2 * identifyBurst {
		l.pid.Store(int64([]int{os.Getppid(), os.Getpid()}[n%2]))
		view, err := v.Look()
		kit.Must(t, err)
		for _, r := range view.Rejected {
			if !errors.Is(r.Err, errNotBelow) {
				t.Errorf("rejected: %v", r.Err)
			}
			told[r.Reason]++
		}
	}
	if len(told) != 1 || told[reasonProcess] < identifyBurst {
		t.Errorf("rejected %v", told)
	}
	// When it states the truth, once.
	l.pid.Store(0)
	view, err := v.Look()
	kit.Must(t, err)
	if len(view.Rejected) != 0 {
		t.Errorf("the truth is rejected: %v", view.Rejected)
	}
	// Then it is found.
	kit.Eventually(t, "it is found", func() bool { _, runs := v.known(); return runs })
}

func TestAClaimThatWasTrueIsNoWrongOneOnceItsProcessHasEnded(t *testing.T) {
	// Given: a launcher that has not said yet that its VM process is gone.
	d := New()
	t.Cleanup(func() { kit.Must(t, d.Close()) })
	v, ok := d.Directory("ns_vm", "", nil).(*vm)
	if !ok {
		t.Fatal("not a vm")
	}
	view := watch.View{
		Directory: grace.Directory{Present: true, Registered: true, Locked: true, UID: "u-1", Readable: true, Holder: grace.Holder{PID: os.Getppid(), File: 7}},
		Asking:    signals.Asking{Asks: signals.AsksLauncher, PID: os.Getpid()},
	}
	v.found = claim{view.Holder.PID, view.PID, view.Holder.File}
	v.learn(&view)
	if _, runs := v.known(); runs || len(view.Rejected) != 0 || !v.budget.paid.IsZero() {
		t.Errorf("it is looked into again: it runs %v, rejected %v", runs, view.Rejected)
	}
	// Another registration says something of its own.
	view.Holder.File = 8
	v.learn(&view)
	if _, runs := v.known(); !runs || len(view.Rejected) != 0 {
		t.Errorf("a new claim, of a process below its parent: it runs %v, rejected %v", runs, view.Rejected)
	}
}
