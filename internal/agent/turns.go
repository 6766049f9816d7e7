package agent

import "context"

// turns lets workers that must not overtake each other go one after the
// other, in the order in which the keeper took their turns.
type turns struct{ last chan struct{} }

// take returns what to wait for and what to call at the end. wait is false if
// ctx ended before the turn came.
func (t *turns) take() (wait func(context.Context) bool, done func()) {
	before, mine := t.last, make(chan struct{})
	t.last = mine
	wait = func(ctx context.Context) bool {
		if before == nil {
			return ctx.Err() == nil
		}
		select {
		case <-before:
			return ctx.Err() == nil
		case <-ctx.Done():
			return false
		}
	}
	return wait, func() { close(mine) }
}
