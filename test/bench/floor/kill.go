package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// kill opens a pidfd of each process and sleeps until the time at, in nanoseconds on
// CLOCK_MONOTONIC. Then it sends SIGTERM to all. Its thread has real-time priority, if the
// kernel allows that.
func kill(at int, pids []int) error {
	runtime.LockOSThread()
	realTime := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	if err := unix.SchedSetAttr(0, realTime, 0); err != nil {
		fmt.Fprintln(os.Stdout, "no real-time priority:", err)
	}
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
