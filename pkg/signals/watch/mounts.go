package watch

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mounts tells whether something was mounted or unmounted in this mount
// namespace, for one system call instead of one per place.
type mounts struct {
	// fd is not an os.File: Go's own poller would take the news away.
	fd int
}

func openMounts() (*mounts, error) {
	const path = "/proc/self/mountinfo"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &mounts{fd}, nil
}

// changed tells whether it has since the call before (proc(5), poll on
// mountinfo). Where that cannot be said, it may have.
func (m *mounts) changed() bool {
	if m == nil {
		return true
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLPRI}}, 0)
	return err != nil || n > 0
}

func (m *mounts) close() {
	if m != nil {
		_ = unix.Close(m.fd) // nothing was written through it
	}
}
