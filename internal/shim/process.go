package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/process"
)

// reuseMargin is more than clocks and file systems round.
const reuseMargin = 2 * time.Second

// startedAfter tells whether a process with this start time started clearly later
// than a file with its pid was written: then it is another process with a used pid.
// What is not known proves nothing.
func startedAfter(start uint64, written time.Time) bool {
	return start != 0 && time.Since(written)-process.Age(start) > reuseMargin
}

// start starts the command in a process group of its own, so that neither a
// signal to the shim's group nor a terminal's Ctrl-C reaches it. Not os/exec:
// its Wait would fight reap for the child.
func start(command []string) (pid int, err error) {
	path, err := lookPath(command[0], os.Getenv("PATH"))
	if err != nil {
		return 0, err
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

// lookPath finds a command as execvp(3) does. os/exec would cost 280 kB.
func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("start %s: not found in $PATH", name)
}

// adoptOrphans makes orphans below the shim its children, as they are anyway
// where it is PID 1.
func adoptOrphans() error {
	if os.Getpid() == 1 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_CHILD_SUBREAPER: %w", err)
	}
	return nil
}

// reap takes every ended child, and tells of each with its exit status.
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

func signalName(sig os.Signal) string {
	number, _ := sig.(unix.Signal) // on Linux each is one
	return unix.SignalName(number)
}
