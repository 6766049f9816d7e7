package agent

import "context"

// order runs calls one after the other, as the keeper queued them, so that none overtakes
// another.
type order struct{ last chan struct{} }

// keep queues a call, which fails if ctx ends before its turn comes.
func (o *order) keep(do func(context.Context) error) func(context.Context) error {
	before, mine := o.last, make(chan struct{})
	o.last = mine
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
