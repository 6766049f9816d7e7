package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// timers sleeps until each of n deadlines, which are at random within the next over
// nanoseconds. It prints by how many nanoseconds it woke late.
func timers(n, over int) error {
	var begin unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &begin); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	deadlines := make([]int64, 0, n)
	for range n {
		deadlines = append(deadlines, begin.Nano()+rand.Int64N(int64(over)))
	}
	slices.Sort(deadlines)
	late := make([]time.Duration, 0, n)
	for _, at := range deadlines {
		if err := sleep(at); err != nil {
			return err
		}
		var woke unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &woke); err != nil {
			return fmt.Errorf("clock: %w", err)
		}
		late = append(late, time.Duration(woke.Nano()-at))
	}
	for _, d := range late {
		fmt.Fprintln(os.Stdout, d.Nanoseconds())
	}
	return nil
}

// sleep sleeps until a time on CLOCK_MONOTONIC, in nanoseconds.
func sleep(until int64) error {
	t := unix.NsecToTimespec(until)
	for {
		err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &t, nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("sleep: %w", err)
		}
	}
}
