package node

import (
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
)

// lockMemory keeps the agent's used pages in memory, so that no deadline waits for a page
// from a disk that hangs: Linux drops pages of programs, too.
func lockMemory(log *slog.Logger) {
	if err := mlockall(); err != nil {
		log.Warn("the agent's memory is not locked: a deadline may wait for a disk that its pages are read from; it needs CAP_IPC_LOCK", "err", err)
	}
}

// mlockall locks all that is mapped now or later, page by page as it is touched. With a
// limit on locked memory a later allocation could fail. For CAP_IPC_LOCK there is no
// limit, and with a limit of 0 Linux allows only that capability (mlock(2)).
func mlockall() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("getrlimit RLIMIT_MEMLOCK: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Max: limit.Max}); err != nil {
		return fmt.Errorf("setrlimit RLIMIT_MEMLOCK: %w", err)
	}
	err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
	if err != nil {
		err = fmt.Errorf("mlockall: %w", err)
	}
	if back := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); back != nil {
		err = errors.Join(err, fmt.Errorf("setrlimit RLIMIT_MEMLOCK: %w", back))
	}
	return err
}
