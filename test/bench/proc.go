package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// status returns a number in /proc/PID/status (proc(5)).
func (b *bench) status(pid int, key string) int {
	b.Helper()
	n, err := statusField(fmt.Sprintf("/proc/%d/status", pid), key)
	b.must(err)
	return n
}

func statusField(path, key string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == key {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, fmt.Errorf("%s: no %s", path, key)
}

// wakeups returns how often the threads of a process have waited for something. It does not
// count threads that have ended.
func (b *bench) wakeups(pid int) int {
	b.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	b.must(err)
	sum := 0
	for _, t := range threads {
		n, err := statusField(t, "voluntary_ctxt_switches:")
		if os.IsNotExist(err) {
			continue
		}
		b.must(err)
		sum += n
	}
	return sum
}

// cpu returns the processor time of a process in seconds. schedstat counts nanoseconds,
// stat only ticks of 10 ms.
func (b *bench) cpu(pid int) float64 {
	b.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	b.must(err)
	sum := 0.0
	for _, t := range threads {
		text, err := os.ReadFile(t)
		if os.IsNotExist(err) {
			continue
		}
		b.must(err)
		ns, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		b.must(err)
		sum += ns / 1e9
	}
	return sum
}

// now returns the time on CLOCK_MONOTONIC, which records use.
func (b *bench) now() grace.Mono {
	b.Helper()
	var t unix.Timespec
	b.must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	return grace.Mono(t.Nano())
}

func (b *bench) bootID() string {
	b.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	b.must(err)
	return strings.TrimSpace(string(text))
}
