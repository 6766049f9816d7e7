package watch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Mounts calls changed when something may have been mounted or unmounted in
// this mount namespace, until ctx ends. Where the kernel does not tell, that is
// every half second.
func Mounts(ctx context.Context, log *slog.Logger, changed func()) {
	err := watchMounts(ctx, "/proc/self/mountinfo", changed)
	if ctx.Err() != nil {
		return
	}
	log.Warn("cannot watch the mount table; polling", "every", pollInterval, "err", err)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			changed()
		}
	}
}

// watchMounts has Go's poller wait for the file: each change of the mount table
// wakes it (proc(5)), and so no thread waits here.
func watchMounts(ctx context.Context, path string, changed func()) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.Close() })() // ends the wait
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("poll %s: %w", path, err)
	}
	return raw.Read(func(uintptr) bool { changed(); return false })
}
