package reboot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// Local is the node that this process runs on, in its PID namespace.
type Local struct{}

// Terminate implements Node. A process that is gone needs no signal.
func (Local) Terminate(is Process) error {
	p, err := process.Open(is.PID, is.Start)
	if err == nil {
		err = errors.Join(p.Signal(unix.SIGTERM), p.Close())
	}
	if errors.Is(err, process.ErrGone) {
		return nil
	}
	return err
}

// Age implements Node.
func (Local) Age(is Process) time.Duration { return process.Age(is.Start) }

// Find implements Node. It looks at every process of the node: that finds the pods' cgroups
// wherever kubelet and the runtime have put them.
func (Local) Find(launchers []hold.Launcher) (map[string]Processes, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("processes: %w", err)
	}
	found := make(map[string]Processes, len(launchers))
	depth := map[string]int{} // of the PID namespace of each First
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err != nil || !bytes.Contains(text, []byte("pod")) {
			continue // it has ended, or is no pod's
		}
		for i := range launchers {
			l := &launchers[i]
			if !process.OfPod(text, l.UID) {
				continue
			}
			is := found[l.UID]
			is.add(pid, process.OfContainer(text, l.Compute), l.UID, depth)
			found[l.UID] = is
		}
	}
	return found, nil
}

// add takes one process of a launcher's pod. It skips one that has ended meanwhile.
func (of *Processes) add(pid int, compute bool, pod string, depth map[string]int) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return
	}
	name, inner := parseStatus(status)
	first := compute && len(inner) > 1 && inner[len(inner)-1] == "1"
	if !first && !strings.HasPrefix(name, "qemu") {
		return
	}
	start, err := process.Start(pid)
	if err != nil || process.Check(pid, start) != nil {
		return
	}
	if strings.HasPrefix(name, "qemu") {
		of.QEMUs = append(of.QEMUs, Process{pid, start})
	}
	// A process may have made PID namespaces below the container's.
	if least := depth[pod]; first && (least == 0 || len(inner) < least) {
		of.First, depth[pod] = Process{pid, start}, len(inner)
	}
}

// parseStatus reads Name and NSpid of /proc/PID/status (proc(5)). The process sets its own
// name, whose newlines are escaped there.
func parseStatus(text []byte) (name string, inner []string) {
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) < 2:
		case fields[0] == "Name:":
			name = fields[1]
		case fields[0] == "NSpid:":
			inner = fields[1:]
		}
	}
	return name, inner
}
