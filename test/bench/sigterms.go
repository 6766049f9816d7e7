package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/node"
)

// sigterms is the kernel's own list of SIGTERMs, whoever sends them: a trace
// instance of this run (Documentation/trace/ftrace.rst), on CLOCK_MONOTONIC.
type sigterms struct{ dir string }

var sentTo = regexp.MustCompile(` (\d+)\.(\d{6}): signal_generate: .* pid=(\d+) `)

// sigterms begins to list them, until the end of the round.
func (b *bench) sigterms() *sigterms {
	b.Helper()
	trace := b.temp()
	if err := unix.Mount("tracefs", trace, "tracefs", 0, ""); err != nil {
		b.Fatalf("row c needs the kernel's trace: mount tracefs: %v", err)
	}
	b.Cleanup(func() { b.must(unix.Unmount(trace, 0)) })
	s := &sigterms{dir: filepath.Join(trace, "instances", fmt.Sprintf("vmgrace-bench-%d", os.Getpid()))}
	b.must(os.Mkdir(s.dir, 0o700))
	b.Cleanup(func() { b.must(os.Remove(s.dir)) })
	for _, set := range [][2]string{
		{"trace_clock", "mono"},
		{"events/signal/signal_generate/filter", "sig==15"},
		{"events/signal/signal_generate/enable", "1"},
	} {
		b.must(os.WriteFile(filepath.Join(s.dir, set[0]), []byte(set[1]), 0o600))
	}
	return s
}

// sent says when the first and the last of the guests was sent its first one.
func (s *sigterms) sent(b *bench, guests []*node.Guest) (first, last grace.Mono) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "trace"))
	b.must(err)
	at := map[string]grace.Mono{}
	for line := range strings.Lines(string(text)) {
		m := sentTo.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		t, err := time.ParseDuration(m[1] + "." + m[2] + "s")
		b.must(err)
		if _, again := at[m[3]]; !again {
			at[m[3]] = grace.Mono(t)
		}
	}
	for i, g := range guests {
		t, ok := at[strconv.Itoa(g.PID)]
		if !ok {
			b.Fatalf("nobody sent %s (process %d) a SIGTERM", g.Domain, g.PID)
		}
		if i == 0 {
			first = t
		}
		first, last = min(first, t), max(last, t)
	}
	return first, last
}
