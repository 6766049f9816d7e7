package nodeagent

import (
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
)

// lockMemory keeps in memory what the agent has touched, so that no deadline
// waits for a page from a disk that hangs: Linux drops pages of programs, too.
// A limit on locked memory would have later allocations fail, so it goes first.
func lockMemory(log *slog.Logger) {
	none := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &none)
	if err != nil {
		err = fmt.Errorf("setrlimit RLIMIT_MEMLOCK: %w", err)
	} else if err = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		err = fmt.Errorf("mlockall: %w", err)
	}
	if err != nil {
		log.Warn("the agent's memory is not locked: a deadline may wait for a disk that its pages are read from; it needs CAP_SYS_RESOURCE and CAP_IPC_LOCK", "err", err)
	}
}
