package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kill holds a pidfd of each process, sleeps until the time on CLOCK_MONOTONIC
// in nanoseconds, and sends SIGTERM to all.
func kill(at int, pids []int) error {
	fds := make([]int, 0, len(pids))
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return fmt.Errorf("pidfd of %d: %w", pid, err)
		}
		fds = append(fds, fd)
	}
	if err := sleep(int64(at)); err != nil {
		return err
	}
	for _, fd := range fds {
		if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
			return fmt.Errorf("SIGTERM: %w", err)
		}
	}
	return nil
}
