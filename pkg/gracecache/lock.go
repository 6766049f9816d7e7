package gracecache

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lockName = ".lock"

// ErrLocked is the error of Take and MakeWritable while another agent uses the directory.
var ErrLocked = errors.New("another node-agent is using it")

// errEnding means that the agent that has the directory was killed, and cannot end while
// its disk hangs. It does nothing any more, so the next agent may guard its VMs.
var errEnding = errors.New("a node-agent that was killed cannot let go of it: it hangs in the kernel")

// lock takes the directory for this process. The kernel releases it when the process
// ends, in any way (flock(2)). create is os.O_CREATE, or 0 to write nothing: on a frozen
// disk O_CREATE blocks even if the file exists.
func lock(dir string, create int) (*os.File, error) {
	// Opened for reading: a file open for writing blocks a read-only remount, and cannot
	// be opened on a read-only disk.
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|create|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open its lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		switch is := heldBy(f, "/proc"); {
		case !errors.Is(err, unix.EWOULDBLOCK):
		case isEnding(is, "/proc"):
			err = fmt.Errorf("%w (pid %d)", errEnding, is)
		default:
			err = fmt.Errorf("%w%s", ErrLocked, holder(f))
		}
		return nil, errors.Join(fmt.Errorf("lock state directory %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// sign writes our pid for the error message of a second agent. It writes in place, so
// that it needs no space on a full disk.
func sign(lock *os.File) (err error) {
	f, err := os.OpenFile(lock.Name(), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("write our pid: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text := fmt.Appendln(nil, os.Getpid())
	if _, err := f.WriteAt(text, 0); err != nil {
		return fmt.Errorf("write our pid: %w", err)
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("cut the lock file: %w", err)
	}
	return nil
}

// holder returns who signed the lock, as far as it can be read.
func holder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}
