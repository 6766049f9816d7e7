package shim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/process"
)

// reuseMargin exceeds the rounding of clocks and file systems.
const reuseMargin = 2 * time.Second

// startedAfter reports whether a process with this start time started clearly after its
// pid was written to a file. Then it is another process with a reused pid. An unknown
// start time proves nothing.
func startedAfter(start uint64, written time.Time) bool {
	return start != 0 && time.Since(written)-process.Age(start) > reuseMargin
}

// start starts the command in its own process group, so that neither a signal to the
// shim's group nor a terminal's Ctrl-C reaches it. It does not use exec.Cmd, whose Wait
// would compete with reap for the child.
func start(command []string) (pid int, err error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", command[0], err)
	}
	pid, err = syscall.ForkExec(path, command, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", path, err)
	}
	return pid, nil
}

// adoptOrphans makes orphans below the shim its children, as they already are if it is
// PID 1.
func adoptOrphans() error {
	if os.Getpid() == 1 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_CHILD_SUBREAPER: %w", err)
	}
	return nil
}

// reap waits for every ended child, and reports each with its exit status.
func reap(tell func(pid, status int)) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid <= 0: // ECHILD, or none that has ended
			return
		case ws.Signaled():
			tell(pid, 128+int(ws.Signal()))
		default:
			tell(pid, ws.ExitStatus())
		}
	}
}

// firstRealTime is SIGRTMIN of libc. It and the later ones have no names of their own.
const firstRealTime, lastSignal unix.Signal = 34, 64

// stopSignals returns what a container runtime may send as a stop signal: all that can be
// caught, without what the kernel and the Go runtime send for other reasons. A terminal that
// is resized sends SIGWINCH.
func stopSignals() (all []os.Signal) {
	others := []unix.Signal{unix.SIGCHLD, unix.SIGPIPE, unix.SIGURG, unix.SIGCONT, unix.SIGTTIN, unix.SIGTTOU}
	if terminal, err := os.Open("/dev/tty"); err == nil {
		_ = terminal.Close() // nothing was read
		others = append(others, unix.SIGWINCH)
	}
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		if !slices.Contains(others, sig) {
			all = append(all, sig)
		}
	}
	return all
}

func signalName(sig os.Signal) string {
	number, _ := sig.(unix.Signal) // on Linux each is one
	if number >= firstRealTime {
		return fmt.Sprintf("SIGRTMIN+%d", number-firstRealTime)
	}
	return unix.SignalName(number)
}
