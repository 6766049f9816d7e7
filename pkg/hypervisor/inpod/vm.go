package inpod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// lookTimeout bounds the look at a launcher directory: the VM may be libvirt's, which is
// asked next.
const lookTimeout = 2 * time.Second

// vm is one VM's launcher directory and what was found there.
type vm struct {
	Directory
	driver          *Driver
	name, pod, uuid string

	writing chan struct{} // a token for status.json

	mu        sync.Mutex // never held during a wait
	looked    bool
	claims    bool   // its launcher asks the guest itself
	uid       string // by vm.json
	process   *process.Process
	instance  grace.Instance
	destroyed bool  // by this driver
	found     claim // the claim that named it
	refused   refusal
	budget    budget    // for looks into claims
	waiting   bool      // for the next one
	off       bool      // its launcher says that the guest is off and the process stays
	place     time.Time // its place among those of the node; zero: none

	status            grace.Status // the agent's last status
	request, answered uint64
	result            string
	news              chan struct{} // closed at an answer
}

// Look implements Directory.
func (v *vm) Look() (watch.View, error) {
	view, err := v.Directory.Look()
	if err == nil {
		v.learn(&view)
	}
	return view, err
}

// WriteStatus implements Directory.
func (v *vm) WriteStatus(s grace.Status) error {
	v.writing <- struct{}{}
	defer func() { <-v.writing }()
	v.mu.Lock()
	v.status = s
	s.Request = v.request
	v.mu.Unlock()
	return v.Directory.WriteStatus(s)
}

// learn takes what a launcher directory says.
func (v *vm) learn(view *watch.View) {
	v.mu.Lock()
	v.take(view)
	running := v.process != nil && !v.process.Gone()
	says, open := v.claim(view)
	open = open && !running
	// The launcher's word ends only the process that it has named.
	off := running && v.claims && says == v.found && view.Guest == signals.GuestOff
	changed := off != v.off
	v.off = off
	i := v.instance
	due, later := false, time.Duration(0)
	if open {
		due, later = v.turn(time.Now())
	}
	v.mu.Unlock()
	v.driver.keep(v, view.Present || running)
	if changed {
		v.driver.tell(hypervisor.Event{Name: v.name, UUID: i.UUID})
	}
	if due {
		v.identify(says)
	}
	if later > 0 {
		v.lookAgain(later)
	}
	if open {
		v.reject(says, view)
	}
}

// take takes the VM's UID and its answers. The caller holds the lock.
func (v *vm) take(view *watch.View) {
	v.looked = true
	v.claims = view.Registered && view.Asks == signals.AsksLauncher
	if !v.claims {
		return
	}
	v.uid = view.UID
	// Only requests that were made count.
	if n := view.Requested; n > v.answered && n <= v.request {
		v.answered, v.result = n, view.Result
		close(v.news)
		v.news = make(chan struct{})
	}
}

// await starts a goroutine that waits for the end of a process or of the driver.
func (d *Driver) await(wait func(closed <-chan struct{})) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done {
		return false
	}
	d.ends.Go(func() { wait(d.closed) })
	return true
}

func (v *vm) claimed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.claims
}

func (v *vm) letGo() {
	v.mu.Lock()
	p := v.process
	v.process = nil
	v.mu.Unlock()
	if p != nil {
		_ = p.Close() // it goes on
	}
}

// known returns the instance, and whether it runs.
func (v *vm) known() (grace.Instance, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.instance, v.process != nil && !v.process.Gone()
}

// now returns the running instance: the known one, or the one that the launcher directory
// names by now.
func (v *vm) now(ctx context.Context) (grace.Instance, error) {
	if i, runs := v.known(); runs {
		return i, nil
	}
	v.mu.Lock()
	other := v.looked && !v.claims // each look by the agent updates that
	v.mu.Unlock()
	if other {
		return grace.Instance{}, hypervisor.ErrNotFound
	}
	bound, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := within(bound, func() error { _, err := v.Look(); return err }); err != nil {
		return grace.Instance{}, fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
	if i, runs := v.known(); runs {
		return i, nil
	}
	return grace.Instance{}, hypervisor.ErrNotFound
}

// power returns the guest's power, as far as the agent needs it: the launcher resumes a
// paused guest before it asks.
func (v *vm) power() grace.Power {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.off {
		return grace.PowerOff
	}
	return grace.PowerOn
}

// kill signals exactly this instance.
func (v *vm) kill(i grace.Instance, s unix.Signal) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.process == nil || v.instance != i {
		return hypervisor.ErrNotFound
	}
	err := v.process.Signal(s)
	if errors.Is(err, process.ErrGone) {
		return fmt.Errorf("%w: %w", hypervisor.ErrNotFound, err)
	}
	v.destroyed = v.destroyed || err == nil
	return err
}

// ended returns why an instance ended. A killed launcher leaves vm.json without its lock,
// and takes the VM along. One that lives, or has left in order, saw the VM end by itself.
func (v *vm) ended(ctx context.Context, i grace.Instance) (grace.End, error) {
	v.mu.Lock()
	known := v.instance == i // this driver has watched it
	runs := known && v.process != nil && !v.process.Gone()
	destroyed := known && v.destroyed
	v.mu.Unlock()
	switch {
	case runs:
		return grace.EndUnknown, nil
	case destroyed:
		return grace.EndDestroyed, nil
	}
	if i.PID != 0 && !errors.Is(process.Check(i.PID, i.Start), process.ErrGone) {
		return grace.EndUnknown, nil
	}
	var view watch.View
	err := within(ctx, func() (err error) { view, err = v.Directory.Look(); return err })
	switch {
	case err != nil:
		return grace.EndUnknown, err
	case view.Registered && !view.Locked:
		return grace.EndDestroyed, nil
	case !known:
		return grace.EndExited, nil
	default:
		return grace.EndGuest, nil
	}
}

// within waits for do, which a launcher directory may delay, until ctx ends.
func within(ctx context.Context, do func() error) error {
	return durable.Within(ctx, "the launcher directory", do)
}
