package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running command. It needs no goroutine, because a pidfd shows its end. All
// methods may be called concurrently.
type Process struct {
	cmd *exec.Cmd
	log string

	mu sync.Mutex
	fd int // pidfd, -1 after the process is reaped
}

// StartProcess runs cmd in a process group of its own, or in the group that cmd names, so
// that Ctrl-C reaches only the process that has to clean up. The output is appended to the
// file log.
func StartProcess(cmd *exec.Cmd, log string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", cmd.Path, err)
	}
	defer out.Close() // the child has its own copy
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	fd := -1
	cmd.SysProcAttr.PidFD = &fd
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if fd < 0 {
		_ = cmd.Process.Kill()
		return nil, errors.Join(errors.New("the kernel has no pidfd"), cmd.Wait())
	}
	return &Process{cmd: cmd, log: log, fd: fd}, nil
}

// PID returns the process id in the caller's PID namespace.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends sig. It returns an error where the process has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		return os.ErrProcessDone
	}
	return unix.PidfdSendSignal(p.fd, sig, nil, 0)
}

// Exited waits at most the given time for the end and returns the exit status, which is
// 128+n after signal n. ok is false while the process runs.
func (p *Process) Exited(within time.Duration) (code int, ok bool) {
	end := time.Now().Add(within)
	for {
		// reap holds the mutex. Short waits let a Signal get it.
		left := time.Until(end)
		if code, ok := p.reap(min(max(left, 0), 20*time.Millisecond)); ok || left <= 0 {
			return code, ok
		}
	}
}

func (p *Process) reap(within time.Duration) (code int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		if !ended(p.fd, within) {
			return 0, false
		}
		_ = p.cmd.Wait() // the exit status below says the same
		_ = unix.Close(p.fd)
		p.fd = -1
	}
	state := p.cmd.ProcessState
	if ws, isWS := state.Sys().(syscall.WaitStatus); isWS && ws.Signaled() {
		return 128 + int(ws.Signal()), true
	}
	return state.ExitCode(), true
}

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	_, ok := p.Exited(0)
	return !ok
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() {
	if p.Signal(unix.SIGKILL) == nil {
		p.Exited(10 * time.Second)
	}
}

// Resident returns the process's resident memory in bytes, from field 2 of proc(5)'s statm.
func (p *Process) Resident(t T) int {
	t.Helper()
	statm := strings.Fields(readText(fmt.Sprintf("/proc/%d/statm", p.PID())))
	if len(statm) < 2 {
		t.Fatalf("statm of %s: %q", p.cmd.Path, statm)
	}
	pages, err := strconv.Atoi(statm[1])
	if err != nil {
		t.Fatalf("statm of %s: %v", p.cmd.Path, err)
	}
	return pages * os.Getpagesize()
}

// Log returns what the process has written to stdout and stderr.
func (p *Process) Log() string { return readText(p.log) }

// readText returns a file's text, or "" where it cannot be read.
func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// worthReading returns the last lines of a libvirtd's log without the lines that every
// guest and every connection leaves. Those would hide the line about the failure.
func worthReading(log string) string {
	const most = 50
	usual := regexp.MustCompile(`virNetSocketReadWire.*End of file|qemuDomainObjTaintMsg|virCgroupDetectControllers`)
	lines := slices.DeleteFunc(strings.Split(log, "\n"), usual.MatchString)
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// ended polls a pidfd. A readable pidfd means that the process has ended.
func ended(pidfd int, within time.Duration) bool {
	end := time.Now().Add(within)
	for {
		left := max(0, time.Until(end))
		// The timeout is rounded up: a loop of polls of 0 ms would use a whole core.
		ms := int((left + time.Millisecond - 1) / time.Millisecond)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, ms)
		if n > 0 {
			return true
		}
		if left == 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return false
		}
	}
}
