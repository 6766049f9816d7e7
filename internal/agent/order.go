package agent

import "context"

// turns lets calls that must not overtake each other go one after the other,
// in the order in which the keeper took their turns.
type turns struct{ last chan struct{} }

// in takes a turn for a call, which fails if ctx ends before the turn comes.
func (t *turns) in(do func(context.Context) error) func(context.Context) error {
	before, mine := t.last, make(chan struct{})
	t.last = mine
	return func(ctx context.Context) error {
		defer close(mine)
		if before != nil {
			select {
			case <-before:
			case <-ctx.Done():
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return do(ctx)
	}
}
