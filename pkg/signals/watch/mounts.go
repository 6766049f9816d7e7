package watch

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watchMounts calls changed when something may have been mounted or unmounted in this
// mount namespace, until ctx ends. Each change of the mount table wakes Go's poller
// (proc(5)), so no thread waits here.
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
