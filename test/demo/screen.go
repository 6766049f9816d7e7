package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// screen shows the demo while it runs.
type screen interface {
	// say shows an event. vm is "" if it concerns no VM or all of them.
	say(vm, text string)
	// show draws the state of all VMs.
	show(rows []row)
	// end prints the last text, below everything else.
	end(text string)
}

// row is the state of a VM at one moment.
type row struct {
	vm, guest, phase string
	grace            time.Duration
	left             time.Duration // until the deadline, if counting
	counting         bool
}

// lines is the screen for a log: one line per event, and the countdown once a second.
type lines struct {
	w     io.Writer
	mu    sync.Mutex
	begin time.Time
	shown time.Time
}

func (l *lines) say(vm, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line(vm, text)
}

// line prints one line with the seconds since the first one.
func (l *lines) line(vm, text string) {
	if l.begin.IsZero() {
		l.begin = time.Now()
	}
	fmt.Fprintf(l.w, "%6.2f s  %-8s %s\n", time.Since(l.begin).Seconds(), vm, text)
}

func (l *lines) show(rows []row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.shown) < time.Second {
		return
	}
	l.shown = time.Now()
	for _, r := range rows {
		if r.counting {
			l.line(r.vm, fmt.Sprintf("%s, %.1f s left", r.phase, max(r.left, 0).Seconds()))
		}
	}
}

func (l *lines) end(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprint(l.w, "\n", text)
}

// live is the screen for a terminal. It redraws a table in place, with the latest event of
// each VM, and prints the events that concern all VMs above the table.
type live struct {
	w     io.Writer
	width int

	mu    sync.Mutex
	drawn int // lines of the table that are on the screen
	last  time.Time
	rows  []row
	notes map[string]string
}

func (l *live) say(vm, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if vm != "" {
		if l.notes == nil {
			l.notes = map[string]string{}
		}
		l.notes[vm] = text
		return
	}
	l.erase()
	fmt.Fprintln(l.w, text)
}

// show draws ten times a second at most.
func (l *live) show(rows []row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = rows
	if time.Since(l.last) >= 100*time.Millisecond {
		l.draw()
	}
}

func (l *live) draw() {
	l.last = time.Now()
	l.erase()
	fmt.Fprintln(l.w)
	for _, r := range l.rows {
		state := r.phase
		if r.counting {
			state = bar(r.left, r.grace)
		}
		text := fmt.Sprintf("  %-8s %-31s %-26s %s", r.vm, r.guest, state, l.notes[r.vm])
		fmt.Fprintln(l.w, cut(text, l.width-1)) // a line that wraps could not be erased
	}
	l.drawn = len(l.rows) + 1
}

// end draws the last state of the table and leaves it on the screen.
func (l *live) end(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draw()
	fmt.Fprint(l.w, "\n", text)
}

// erase removes the table from the screen: cursor up, clear to the end.
func (l *live) erase() {
	if l.drawn > 0 {
		fmt.Fprintf(l.w, "\x1b[%dA\x1b[J", l.drawn)
		l.drawn = 0
	}
}

// bar draws how much of the grace period is left.
func bar(left, grace time.Duration) string {
	const width = 16
	full := 0
	if grace > 0 {
		full = int(min(max(left*width/grace, 0), width))
	}
	return fmt.Sprintf("[%s%s] %5.1f s", strings.Repeat("#", full), strings.Repeat(".", width-full), max(left, 0).Seconds())
}

// cut shortens ASCII text to a width.
func cut(text string, width int) string {
	if width > 0 && len(text) > width {
		return text[:width]
	}
	return text
}
