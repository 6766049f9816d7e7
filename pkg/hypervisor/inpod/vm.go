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

	asking  chan struct{} // a token for a request to shut down
	writing chan struct{} // a token for status.json
	moving  chan struct{} // a token for a request about a migration
	looking chan struct{} // a token for a look that a mover waits for

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
	guest     string    // its launcher says that the guest is off, or has panicked, and the process stays
	agent     bool      // its launcher can ask the guest's agent
	place     time.Time // its place among those of the node; zero: none

	status            grace.Status // the agent's last status
	request, answered uint64
	by                grace.Mode // how the last request is made
	result            string
	news              chan struct{} // closed at an answer, or other news of a migration

	moves moves
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
	s = v.withRequests(s)
	v.mu.Unlock()
	return v.Directory.WriteStatus(s)
}

// learn takes what a launcher directory says.
func (v *vm) learn(view *watch.View) {
	target := v.driver.launchers().Target(v.name, v.pod)
	v.mu.Lock()
	was, state := v.shown(), v.moves.says.State
	v.moves.target = v.moves.target || target
	v.take(view)
	running := v.process != nil && !v.process.Gone()
	says, open := v.claim(view)
	open = open && !running
	if v.guest = ""; running && v.named(says) {
		v.guest = view.Guest
	}
	v.hear(says, view)
	changed := was != v.shown() || state != v.moves.says.State // the guest may be stopped until a migration hears it
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
		v.mu.Lock()
		v.hear(says, view)
		v.mu.Unlock()
	}
	if later > 0 {
		v.lookAgain(later)
	}
	v.reject(says, view)
}

// take takes the VM's UID and its answers. The caller holds the lock.
func (v *vm) take(view *watch.View) {
	v.looked = true
	v.claims = view.Registered && view.Asks == signals.AsksLauncher
	if !v.claims {
		return
	}
	v.uid, v.agent = view.UID, view.Agent
	// Only requests that were made count.
	if n := view.Requested; n > v.answered && n <= v.request {
		v.answered, v.result = n, view.Result
		v.tellNews()
	}
}

// named reports whether a claim names the process that was found. Only for that one the
// launcher's word counts. The caller holds the lock.
func (v *vm) named(says claim) bool { return v.claims && says == v.found }

// hear takes what the launcher says of migrations if it has named the process, which runs. The
// caller holds the lock.
func (v *vm) hear(says claim, view *watch.View) {
	if v.process == nil || v.process.Gone() || !v.named(says) {
		v.moves.heard = false
		return
	}
	if v.moves.hear(view.Migration, time.Now()) {
		v.tellNews()
	}
	v.endTarget(says, view)
}

// tellNews wakes who waits for an answer. The caller holds the lock.
func (v *vm) tellNews() {
	close(v.news)
	v.news = make(chan struct{})
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
	if err := v.refresh(ctx); err != nil {
		return grace.Instance{}, err
	}
	if i, runs := v.known(); runs {
		return i, nil
	}
	return grace.Instance{}, hypervisor.ErrNotFound
}

// shown is what the driver shows of a process that runs.
type shown struct {
	power   grace.Power
	agent   bool
	hidden  bool
	arrived bool // its migration waits for that
}

// shown returns the guest's power, as far as the agent needs it: the launcher resumes a guest
// that its user has paused before it asks it. A process that waits for a guest is hidden. The
// caller holds the lock.
func (v *vm) shown() shown {
	switch {
	case v.guest == signals.GuestOff:
		return shown{power: grace.PowerOff}
	case v.guest == signals.GuestPanicked:
		return shown{power: grace.PowerCrashed}
	case v.moves.arriving():
		return shown{power: grace.PowerPaused, hidden: v.moves.waits(), arrived: v.moves.arrived()}
	default:
		return shown{power: grace.PowerOn, agent: v.agent}
	}
}

// endTarget ends the process of a migration's target in which no guest is to be asked. Nobody is
// told of the shutdown of a VM that runs elsewhere. The caller holds the lock.
func (v *vm) endTarget(says claim, view *watch.View) {
	switch {
	case v.moves.unsent(): // it writes to the disks of the guest at the source
		v.refused = refusal{claim: says, why: errUnsent}
	case view.Trigger && v.moves.waits(): // its pod ends
	default:
		return
	}
	v.destroyed = v.process.Signal(unix.SIGKILL) == nil || v.destroyed
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
	moved := known && v.moves.removed
	destroyed := known && (v.destroyed || v.moves.left()) // a guest that has left does not power off
	v.mu.Unlock()
	switch {
	case runs:
		return grace.EndUnknown, nil
	case moved:
		return grace.EndMoved, nil
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
