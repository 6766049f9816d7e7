package node

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// clock is CLOCK_MONOTONIC, which Go's timers follow too (runtime nanotime).
type clock struct{}

// Now cannot fail on Linux: clock_gettime(2) knows CLOCK_MONOTONIC.
func (clock) Now() grace.Mono {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) //nolint:forbidigo // without a clock there is nothing to go on with
	}
	return grace.Mono(t.Nano())
}

// asleep returns how long the node has been suspended in this boot.
func (c clock) asleep() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // every kernel with pidfds has it
	const jitter = 10 * time.Millisecond           // between the two readings
	if by := time.Duration(t.Nano()) - time.Duration(c.Now()); by > jitter {
		return by - jitter
	}
	return 0
}

func (clock) Wall() time.Time { return time.Now() }

// bootID identifies this boot of the kernel (proc(5)): monotonic times mean nothing in
// another one.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
