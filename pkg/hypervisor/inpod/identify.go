package inpod

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/vmgrace/vmgrace/pkg/process"
)

// Why a process is not a launcher's VM process.
var (
	errNotInPod  = errors.New("it is not in the cgroup of the launcher pod")
	errNoSuchPID = errors.New("the launcher's PID namespace has no such process")
	errNotBelow  = errors.New("it is not below the launcher's shim")
)

// maxDepth bounds how far a VM process may be below its shim.
const maxDepth = 64

// identify opens the process that has the pid in the PID namespace of the shim, which
// holds the lock of vm.json. Both must be in the pod, if there is one, and the process
// must be below the shim. The error is process.ErrGone if one of them has ended
// meanwhile.
//
// Both are held during the checks, so the results are about the opened process, unless it
// has ended since.
func identify(shim, pid int, pod string) (*process.Process, error) {
	holder, err := process.Watch(shim)
	if err != nil {
		return nil, fmt.Errorf("the launcher's shim: %w", err)
	}
	defer holder.Close() //nolint:errcheck // it was only looked at
	if err := inPod(shim, pod); err != nil {
		return nil, fmt.Errorf("the launcher's shim, pid %d: %w", shim, err)
	}
	space, err := namespaceOf(shim)
	if err != nil {
		return nil, err
	}
	found, err := find(space, pid)
	if err != nil {
		return nil, err
	}
	p, err := hold(found)
	if err != nil {
		return nil, err
	}
	err = check(p, space, pid, pod, shim)
	if err == nil && (p.Gone() || holder.Gone()) {
		err = fmt.Errorf("pid %d: %w", found, process.ErrGone)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// hold opens whichever process has the pid now, by its start time.
func hold(pid int) (*process.Process, error) {
	start, err := process.Start(pid)
	if err != nil {
		return nil, err
	}
	return process.Open(pid, start)
}

func check(p *process.Process, space string, pid int, pod string, shim int) error {
	is, err := namespaceOf(p.PID())
	if err != nil {
		return err
	}
	status, err := statusOf(p.PID())
	if err != nil {
		return err
	}
	if is != space || status.inner != pid {
		return fmt.Errorf("pid %d: %w", pid, errNoSuchPID)
	}
	if err := inPod(p.PID(), pod); err != nil {
		return fmt.Errorf("pid %d: %w", p.PID(), err)
	}
	return below(status.parent, shim)
}

// below checks that a process is below the shim, as orphans of its children are, too.
func below(parent, shim int) error {
	for range maxDepth {
		switch {
		case parent == shim:
			return nil
		case parent <= 1:
			return errNotBelow
		}
		status, err := statusOf(parent)
		if err != nil {
			return err
		}
		parent = status.parent
	}
	return errNotBelow
}

// find finds the process that has a pid in a PID namespace.
func find(space string, pid int) (int, error) {
	if own, err := namespaceOf(os.Getpid()); err == nil && own == space {
		return pid, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("processes: %w", err)
	}
	for _, e := range entries {
		candidate, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Most are in other namespaces; those that end meanwhile are skipped.
		if is, err := namespaceOf(candidate); err != nil || is != space {
			continue
		}
		if status, err := statusOf(candidate); err == nil && status.inner == pid {
			return candidate, nil
		}
	}
	return 0, fmt.Errorf("pid %d: %w", pid, errNoSuchPID)
}

func namespaceOf(pid int) (string, error) {
	space, err := os.Readlink(path(pid, "ns/pid"))
	return space, gone("PID namespace", pid, err)
}

// status is the part of /proc/PID/status that is read.
type status struct {
	parent int
	inner  int // the pid in the innermost PID namespace
}

func statusOf(pid int) (status, error) {
	text, err := os.ReadFile(path(pid, "status"))
	if err != nil {
		return status{}, gone("status", pid, err)
	}
	return parseStatus(text)
}

// parseStatus reads PPid and NSpid (proc(5)). The process sets its own name, whose
// newlines are escaped there.
func parseStatus(text []byte) (s status, err error) {
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		number, err := strconv.Atoi(fields[len(fields)-1])
		switch fields[0] {
		case "PPid:":
			s.parent = number
		case "NSpid:":
			s.inner = number
		default:
			continue
		}
		if err != nil {
			return status{}, fmt.Errorf("%.80q: %w", line, err)
		}
	}
	if s.inner == 0 {
		return status{}, errors.New("no NSpid: the kernel is older than 4.1")
	}
	return s, nil
}

// inPod reports whether a process is in a pod's cgroup. Without a pod it accepts any.
func inPod(pid int, pod string) error {
	if pod == "" {
		return nil
	}
	text, err := os.ReadFile(path(pid, "cgroup"))
	if err != nil {
		return gone("cgroup", pid, err)
	}
	if !process.OfPod(text, pod) {
		return errNotInPod
	}
	return nil
}

func path(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

func gone(what string, pid int, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH):
		return fmt.Errorf("%s of pid %d: %w", what, pid, process.ErrGone)
	default:
		return fmt.Errorf("%s of pid %d: %w", what, pid, err)
	}
}
