package grace

import (
	"fmt"
	"time"
)

// transitions is every way from one phase to another, with the action that
// takes it. The phase is "" without a record. Destroying follows from the
// clock: where ShuttingDown stands as the end, it may be that already.
var transitions = [...]struct {
	from Phase
	by   Action
	to   Phase
}{
	{"", Adopt, Running},
	{"", Finish, Stopped},
	{Running, Identify, Running},
	{Running, Refresh, Running},
	{Running, Begin, ShuttingDown},
	{Running, HoldShutdown, Held},
	{Running, Finish, Stopped},
	{Running, Forget, ""},
	{Held, Identify, Held},
	{Held, Refresh, Held},
	{Held, HoldShutdown, Held},
	{Held, Begin, ShuttingDown},
	{Held, Finish, Stopped},
	{Held, Forget, ""},
	{ShuttingDown, Identify, ShuttingDown},
	{ShuttingDown, Shorten, ShuttingDown},
	{ShuttingDown, Ask, ShuttingDown},
	{ShuttingDown, Terminate, ShuttingDown}, // the guest is off
	{ShuttingDown, Kill, ShuttingDown},
	{ShuttingDown, Destroy, ShuttingDown},
	{ShuttingDown, DropDryRun, Running},
	{ShuttingDown, Finish, Stopped},
	{Destroying, Identify, Destroying},
	{Destroying, Ask, Destroying}, // its answer may come late
	{Destroying, Terminate, Destroying},
	{Destroying, Kill, Destroying},
	{Destroying, Destroy, Destroying},
	{Destroying, DropDryRun, Running},
	{Destroying, Finish, Stopped},
	{Stopped, Reset, ""},
}

// allow returns an error for an action that the phase does not allow: a bug.
func allow(from Phase, by Action) error {
	for _, t := range transitions {
		if t.from == from && t.by == by {
			return nil
		}
	}
	return fmt.Errorf("no transition from %q by %s", from, by)
}

// arrived returns an error where an action has not led where the table says: a bug.
func arrived(from Phase, by Action, to Phase) error {
	for _, t := range transitions {
		if t.from == from && t.by == by && (t.to == to || t.to == ShuttingDown && to == Destroying) {
			return nil
		}
	}
	return fmt.Errorf("%s led from %q to %q", by, from, to)
}

// begin starts the grace period. start is when the agent first saw the cause, wall the
// same moment on the wall clock. A launcher that died leaves no grace period.
func (r *Record) begin(cause Cause, start Mono, wall time.Time, dry bool) {
	length := r.Period.Length
	if cause == LauncherDied {
		length = 0
	}
	wall = wall.UTC().Truncate(time.Millisecond)
	r.Shutdown = Shutdown{
		Cause: cause, Start: start, Deadline: start.Add(length),
		StartedAt: wall, DeadlineAt: wall.Add(length), DryRun: dry,
	}
}

// shorten moves the deadline forward to when, never back.
func (r *Record) shorten(when Mono) {
	s := &r.Shutdown
	if when >= s.Deadline {
		return
	}
	s.Deadline = when
	s.DeadlineAt = s.StartedAt.Add(when.Sub(s.Start)).Truncate(time.Millisecond)
}

// refresh takes over what the observation says of identity, grace period and
// launcher.
func (r *Record) refresh(o *observation) {
	r.Period = o.Period
	r.UID, r.VMICreated = o.Owner.toRecord(r)
	if o.Pod.UID != "" {
		r.Pod = o.Pod.UID
	}
	r.Holdable, r.Moving = o.holdable(r), o.moving(r)
	r.Launcher = o.shimToRecord(r)
}

// shimToRecord is the launcher that the record is to name: the one that lives. One that has
// ended in order is none any more. One whose process is not known for the moment stands.
func (o *observation) shimToRecord(r *Record) Holder {
	switch {
	case o.Shim == shimAlive && (o.Holder.PID != 0 || r.Launcher.PID == 0):
		return o.Holder
	case o.Shim == shimNone && o.Dir.Present:
		return Holder{}
	default:
		return r.Launcher
	}
}
