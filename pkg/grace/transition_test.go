package grace

import (
	"fmt"
	"time"
)

// transitions lists every way from one phase to another, with its action. The phase is ""
// without a record. Destroying follows from the clock: a transition to ShuttingDown may
// already lead to it.
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

// done carries out a decision that changes the record. It returns an error if the result
// is not in the table.
func (v *VM) done(d Decision, now Mono, wall time.Time) error {
	from := v.phase(now)
	v.Done(d, Result{Wall: wall}, now)
	to := v.phase(now)
	for _, t := range transitions {
		if t.from == from && t.by == d.Do && (t.to == to || t.to == ShuttingDown && to == Destroying) {
			return nil
		}
	}
	return fmt.Errorf("%s by %q led from %q to %q", d.Do, d.Rule, from, to)
}
