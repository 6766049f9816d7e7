package node

import (
	"errors"
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

// Signals is the kernel's list of all SIGTERMs and SIGKILLs that are sent on this machine,
// whoever sends them. It is a trace instance of its own (Documentation/trace/ftrace.rst) on
// CLOCK_MONOTONIC. QEMU's log is no substitute: it has the time at which QEMU received the
// signal, which depends on when QEMU gets a core.
type Signals struct{ trace string }

var sentTo = regexp.MustCompile(` (\d+)\.(\d{6}): signal_generate: sig=(\d+) .* pid=(\d+) `)

// ListSignals starts such a list, which lasts until the test ends.
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
	must("instance", s.begin())
	t.Cleanup(func() { must("instance", os.Remove(s.trace)) })
	return s
}

// begin makes the trace instance, which lasts until its directory is removed.
func (s *Signals) begin() error {
	if err := os.Mkdir(s.trace, 0o700); err != nil {
		return err
	}
	for _, set := range [][2]string{
		{"trace_clock", "mono"},
		{"events/signal/signal_generate/filter", "sig==9 || sig==15"},
		{"events/signal/signal_generate/enable", "1"},
	} {
		if err := os.WriteFile(filepath.Join(s.trace, set[0]), []byte(set[1]), 0o600); err != nil {
			return errors.Join(err, os.Remove(s.trace))
		}
	}
	return nil
}

// Sent returns when the signal was first sent to a guest's QEMU, on CLOCK_MONOTONIC. ok is
// false where nobody sent it.
func (s *Signals) Sent(t T, g *Guest, signal syscall.Signal) (at time.Duration, ok bool) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.trace, "trace"))
	if err != nil {
		t.Fatalf("the kernel's list of signals: %v", err)
	}
	at, ok, err = firstSent(string(text), g.PID, signal, g.since)
	if err != nil {
		t.Fatalf("the kernel's list of signals: %v", err)
	}
	return at, ok
}

// Sent returns when the signal was first sent to QEMU, whoever sent it. ok is false where
// nobody sent it. It reads the node's list.
func (g *Guest) Sent(t T, signal syscall.Signal) (at time.Time, ok bool) {
	t.Helper()
	if g.node.unlisted != nil {
		t.Fatalf("the kernel's list of signals: %v", g.node.unlisted)
	}
	sent, ok := g.node.signals.Sent(t, g, signal)
	return Moment(t, sent), ok
}

// Arrived returns the guest as it runs on this node after a migration from another node.
func (n *Node) Arrived(t T, g *Guest) *Guest {
	t.Helper()
	here := &Guest{Spec: g.Spec, Domain: g.Domain, UID: g.UID, node: n}
	here.findProcess(t)
	t.Cleanup(func() { _ = unix.Close(here.pidfd) })
	return here
}

// firstSent finds the first signal to a process in a trace. It skips signals before since,
// which went to an earlier process with that pid.
func firstSent(trace string, pid int, signal syscall.Signal, since time.Duration) (at time.Duration, ok bool, err error) {
	for line := range strings.Lines(trace) {
		m := sentTo.FindStringSubmatch(line)
		if m == nil || m[3] != strconv.Itoa(int(signal)) || m[4] != strconv.Itoa(pid) {
			continue
		}
		if at, err = time.ParseDuration(m[1] + "." + m[2] + "s"); err != nil {
			return 0, false, fmt.Errorf("%q: %w", line, err)
		}
		if at >= since {
			return at, true, nil
		}
	}
	return 0, false, nil
}

func monotonic(t T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatalf("CLOCK_MONOTONIC: %v", err)
	}
	return time.Duration(now.Nano())
}

// Moment converts a time on CLOCK_MONOTONIC, which records and the kernel's trace use, to a
// time of this process.
func Moment(t T, at time.Duration) time.Time {
	t.Helper()
	for {
		before := time.Now()
		now := monotonic(t)
		if time.Since(before) < exact { // else another process ran between the two
			return before.Add(at - now)
		}
	}
}

// exact is how far the two clocks may have been read apart.
const exact = 100 * time.Microsecond
