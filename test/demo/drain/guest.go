package main

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
)

// guest is what the guest's console has said, on all nodes. Its methods may be called
// concurrently.
type guest struct {
	screen *screen

	mu     sync.Mutex
	boots  int
	asked  int // presses of its power button
	uptime map[string]span
}

// span is the first and the last uptime that the guest has said on a node, in seconds.
type span struct{ first, last int }

var sinceItBooted = regexp.MustCompile(`^(\d+) s since it booted$`)

// says takes a line of the console on a node.
func (g *guest) says(node, line string) {
	_, text, ok := strings.Cut(line, "vmgrace-guest: ")
	if !ok {
		return // the kernel's
	}
	g.screen.say("guest on "+node, "%s", text)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch m := sinceItBooted.FindStringSubmatch(text); {
	case m != nil:
		s, known := g.uptime[node]
		s.last, _ = strconv.Atoi(m[1]) // only digits
		if !known {
			s.first = s.last
		}
		g.uptime[node] = s
	case text == "up":
		g.boots++
	case strings.HasPrefix(text, "press"):
		g.asked++
	}
}

// on returns the uptimes that the guest has said on a node.
func (g *guest) on(node string) (s span, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, ok = g.uptime[node]
	return s, ok
}

// follow shows the console of a launcher pod until ctx ends, or the pod.
func (g *guest) follow(ctx context.Context, c cluster.Client, node, pod string) {
	console := &speaker{say: func(line string) { g.says(node, line) }}
	for ctx.Err() == nil {
		cmd := c.Command(ctx, "logs", "-f", pod)
		cmd.Stdout = console
		if cmd.Run() == nil {
			return
		}
		pause(ctx) // its container does not run yet
	}
}

// pause waits a moment between two looks.
func pause(ctx context.Context) {
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
}
