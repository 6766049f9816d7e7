package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watch returns a channel that gets one value when the process has ended: nil,
// or why that cannot be known any more. The process must exist; ESRCH says
// that it has ended. Closing the file ends the watch without a value.
func watch(pid int) (<-chan error, *os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	// Non-blocking, so that the runtime's poller waits, not a thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("pidfd of %d: %w", pid, err), unix.Close(fd))
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	ended := make(chan error, 1)
	go func() {
		err := conn.Read(func(fd uintptr) bool {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			return err == nil && n == 1
		})
		if !errors.Is(err, os.ErrClosed) {
			ended <- err
		}
	}()
	return ended, f, nil
}

// reuseMargin is more than clocks and file systems round.
const reuseMargin = 2 * time.Second

// startedAfter tells whether the process started clearly later than a file
// with its pid was written: then it is another process with a used pid. What
// cannot be read proves nothing.
func startedAfter(pid int, written time.Time) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The command name may hold anything but ends at the last parenthesis; the
	// start is field 22, in ticks of 10 ms since boot (proc(5)).
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return false
	}
	ticks, err := strconv.ParseInt(string(fields[19]), 10, 64)
	var boot unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return false
	}
	age := time.Duration(boot.Nano()) - time.Duration(ticks)*10*time.Millisecond
	return time.Since(written)-age > reuseMargin
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

// reap takes every ended child. It returns the exit status of the command,
// if that was among them.
func reap(command int) (status int, ended bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid <= 0: // ECHILD, or none that has ended
			return status, ended
		case pid != command:
		case ws.Signaled():
			status, ended = 128+int(ws.Signal()), true
		default:
			status, ended = ws.ExitStatus(), true
		}
	}
}
