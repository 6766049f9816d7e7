// Package writer writes log lines for a program that must not wait for their reader:
// stderr is a pipe, and fills up when nobody reads it.
package writer

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"
)

// waiting is how many lines wait for their reader.
const waiting = 256

// Writer passes lines on, and drops those that find no room. Any goroutine may call its
// methods.
type Writer struct {
	lines   chan []byte
	dropped atomic.Int64 // since it was last reported
	report  atomic.Pointer[report]
	closing chan struct{}
	done    chan struct{}
}

type report struct {
	dropped func()
	resumed func(lines int)
}

// New starts a goroutine that writes to out until Close.
func New(out io.Writer) *Writer {
	w := &Writer{lines: make(chan []byte, waiting), closing: make(chan struct{}), done: make(chan struct{})}
	go w.run(out)
	return w
}

// Report sets two functions: dropped is called for each dropped line, resumed with their
// number once lines are read again. Neither may block.
func (w *Writer) Report(dropped func(), resumed func(lines int)) {
	w.report.Store(&report{dropped, resumed})
}

// Write takes one line. It never blocks and never fails.
func (w *Writer) Write(line []byte) (int, error) {
	select {
	case w.lines <- bytes.Clone(line):
	default:
		w.dropped.Add(1)
		if r := w.report.Load(); r != nil {
			r.dropped()
		}
	}
	return len(line), nil
}

// Close waits until the lines are written, at most for timeout. Call it once; later lines
// are not written.
func (w *Writer) Close(timeout time.Duration) {
	close(w.closing)
	select {
	case <-w.done:
	case <-time.After(timeout):
	}
}

func (w *Writer) run(out io.Writer) {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.pass(out, line)
		case <-w.closing:
			for len(w.lines) > 0 {
				w.pass(out, <-w.lines)
			}
			return
		}
	}
}

func (w *Writer) pass(out io.Writer, line []byte) {
	_, _ = out.Write(line) // there is nowhere to report it
	r := w.report.Load()
	if r == nil || len(w.lines) > waiting/2 { // the report needs a place, too
		return
	}
	if n := w.dropped.Swap(0); n > 0 {
		r.resumed(int(n))
	}
}
