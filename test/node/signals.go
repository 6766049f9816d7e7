package node

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Signals is the kernel's own list of the SIGTERMs and SIGKILLs that are sent on
// this machine, whoever sends them: a trace instance of its own
// (Documentation/trace/ftrace.rst), on CLOCK_MONOTONIC. When QEMU has heard one,
// by its log, depends on when it gets a core.
type Signals struct{ trace string }

var sentTo = regexp.MustCompile(` (\d+)\.(\d{6}): signal_generate: sig=(\d+) .* pid=(\d+) `)

// ListSignals begins to list them, until the test ends.
func ListSignals(t T) *Signals {
	t.Helper()
	must := func(tried string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("the kernel's list of signals: %s: %v", tried, err)
		}
	}
	mount, err := os.MkdirTemp("", "vmgrace-trace-")
	must("mount point", err)
	t.Cleanup(func() { must("mount point", os.Remove(mount)) })
	must("mount tracefs", unix.Mount("tracefs", mount, "tracefs", 0, ""))
	t.Cleanup(func() { must("unmount tracefs", unix.Unmount(mount, unix.MNT_DETACH)) })
	s := &Signals{trace: filepath.Join(mount, "instances", filepath.Base(mount))}
	must("instance", os.Mkdir(s.trace, 0o700))
	t.Cleanup(func() { must("instance", os.Remove(s.trace)) })
	for _, set := range [][2]string{
		{"trace_clock", "mono"},
		{"events/signal/signal_generate/filter", "sig==9 || sig==15"},
		{"events/signal/signal_generate/enable", "1"},
	} {
		must(set[0], os.WriteFile(filepath.Join(s.trace, set[0]), []byte(set[1]), 0o600))
	}
	return s
}

// Sent is when the first such signal was sent to a guest's QEMU, on
// CLOCK_MONOTONIC; ok is false where none was.
func (s *Signals) Sent(t T, g *Guest, signal syscall.Signal) (at time.Duration, ok bool) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.trace, "trace"))
	if err != nil {
		t.Fatalf("the kernel's list of signals: %v", err)
	}
	at, ok, err = firstSent(string(text), g.PID, signal)
	if err != nil {
		t.Fatalf("the kernel's list of signals: %v", err)
	}
	return at, ok
}

func firstSent(trace string, pid int, signal syscall.Signal) (at time.Duration, ok bool, err error) {
	for line := range strings.Lines(trace) {
		m := sentTo.FindStringSubmatch(line)
		if m == nil || m[3] != strconv.Itoa(int(signal)) || m[4] != strconv.Itoa(pid) {
			continue
		}
		if at, err = time.ParseDuration(m[1] + "." + m[2] + "s"); err != nil {
			return 0, false, fmt.Errorf("%q: %w", line, err)
		}
		return at, true, nil
	}
	return 0, false, nil
}

// Moment is a time on CLOCK_MONOTONIC, which records and the kernel's trace have,
// as a time of this process.
func Moment(t T, at time.Duration) time.Time {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatalf("CLOCK_MONOTONIC: %v", err)
	}
	return time.Now().Add(at - time.Duration(now.Nano()))
}
