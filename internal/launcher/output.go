package launcher

import (
	"io"
	"time"
)

// Output passes lines on to a writer that may block: stderr is a pipe, and a
// log that nobody reads must not hold up a trigger. Lines that find no room
// are dropped.
type Output struct {
	lines chan []byte
	done  chan struct{}
}

// NewOutput starts a goroutine that ends after Close.
func NewOutput(w io.Writer) *Output {
	o := &Output{lines: make(chan []byte, 64), done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for line := range o.lines {
			_, _ = w.Write(line) // nobody is left to tell
		}
	}()
	return o
}

// Write never blocks and never fails.
func (o *Output) Write(line []byte) (int, error) {
	select {
	case o.lines <- append([]byte(nil), line...):
	default:
	}
	return len(line), nil
}

// Close waits until the lines are written, but not longer than patience.
// Nothing may be written afterwards.
func (o *Output) Close(patience time.Duration) {
	close(o.lines)
	select {
	case <-o.done:
	case <-time.After(patience):
	}
}
