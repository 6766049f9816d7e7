package grace

import (
	"fmt"
	"time"
)

// transitions is every way from one phase to another, with the action that
// takes it. Destroying follows from the clock, so no action leads there.
var transitions = [...]struct {
	from Phase
	by   Action
	to   Phase
}{
	{Running, Refresh, Running},
	{Running, Identify, Running},
	{Running, Begin, ShuttingDown},
	{Running, Finish, Stopped},
	{Running, Forget, Stopped},
	{ShuttingDown, Identify, ShuttingDown},
	{ShuttingDown, Shorten, ShuttingDown},
	{ShuttingDown, Leave, Running},
	{ShuttingDown, Finish, Stopped},
	{ShuttingDown, Forget, Stopped},
	{Destroying, Identify, Destroying},
	{Destroying, Leave, Running},
	{Destroying, Finish, Stopped},
	{Destroying, Forget, Stopped},
}

// TransitionError is an action that a phase does not allow: a bug.
type TransitionError struct {
	From Phase
	By   Action
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("no transition from %s by %s", e.From, e.By)
}

func (r *Record) allow(by Action, now Mono) error {
	from := r.Phase(now)
	for _, t := range transitions {
		if t.from == from && t.by == by {
			return nil
		}
	}
	return &TransitionError{From: from, By: by}
}

// Begin starts the grace period. start is when the agent first saw the cause,
// wall the same moment on the wall clock. A launcher that died leaves no
// grace period.
func (r *Record) Begin(cause Cause, start, now Mono, wall time.Time, dry bool) error {
	if err := r.allow(Begin, now); err != nil {
		return err
	}
	length := r.Period.Length
	if cause == LauncherDied {
		length = 0
	}
	wall = wall.UTC().Truncate(time.Millisecond)
	r.Shutdown = Shutdown{
		Cause: cause, Start: start, Deadline: start.Add(length),
		StartedAt: wall, DeadlineAt: wall.Add(length), DryRun: dry,
	}
	return nil
}

// Shorten moves the deadline forward to when, never back.
func (r *Record) Shorten(when, now Mono) error {
	if err := r.allow(Shorten, now); err != nil {
		return err
	}
	s := &r.Shutdown
	if when >= s.Deadline {
		return nil
	}
	s.Deadline = when
	s.DeadlineAt = s.StartedAt.Add(when.Sub(s.Start)).Truncate(time.Millisecond)
	return nil
}

// Leave drops a shutdown that was a dry run's. What else is known stays: the
// API may not show it any more.
func (r *Record) Leave(now Mono) error {
	if err := r.allow(Leave, now); err != nil {
		return err
	}
	r.Shutdown = Shutdown{}
	return nil
}

// Refresh takes over what the observation says of identity, grace period and
// launcher. A shutdown that has begun is not touched.
func (r *Record) Refresh(o *Observation, now Mono) error {
	if err := r.allow(Refresh, now); err != nil {
		return err
	}
	r.Period = o.Period
	r.UID, r.VMICreated = o.Owner(r)
	if o.Pod.UID != "" {
		r.Pod = o.Pod.UID
	}
	if o.Shim == ShimAlive {
		r.Launcher = o.Holder
	}
	return nil
}

// Identify takes over the process of the record's instance.
func (r *Record) Identify(i Instance, now Mono) error {
	if err := r.allow(Identify, now); err != nil {
		return err
	}
	r.Instance = i
	return nil
}
