package node

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Guest is one instance of a domain: a QEMU process.
type Guest struct {
	Spec
	// Domain is the domain's name, <namespace>_<name>.
	Domain string
	// UID stands for the VMI's UID. It is not the domain's UUID.
	UID string
	// PID is QEMU's process id. StartTime is field 22 of /proc/<pid>/stat.
	PID       int
	StartTime uint64

	node   *Node
	pidfd  int
	since  time.Duration // when it was found running, on CLOCK_MONOTONIC
	serial string
	log    string
	logPos int // offset of this instance's part of QEMU's log
}

// Boot starts a guest and waits until it is up. A firmware guest only has to run.
func (n *Node) Boot(t T, s Spec) *Guest {
	t.Helper()
	g := n.Start(t, s)
	g.WaitUp(t)
	return g
}

// Start starts a guest and returns as soon as QEMU runs. Given the Spec of a guest that has
// ended, it starts another instance of that domain.
func (n *Node) Start(t T, s Spec) *Guest {
	t.Helper()
	s = s.Complete()
	g := &Guest{Spec: s, Domain: s.DomainName(), UID: randomUUID(), node: n}
	g.serial = filepath.Join(n.Dir, g.Domain+".serial")
	g.log = filepath.Join(n.Dir, "log", "qemu", g.Domain+".log")
	g.logPos = len(readText(g.log))
	_ = os.Remove(g.serial) // of an earlier instance

	file := g.define(t)
	if s.Persistent {
		n.Virsh(t, "define", file)
		n.Virsh(t, "start", g.Domain)
	} else {
		n.Virsh(t, "create", file)
	}
	g.findProcess(t)
	t.Cleanup(func() { g.cleanup(t) })
	return g
}

// define writes the guest's domain XML and returns the file's path.
func (g *Guest) define(t T) string {
	t.Helper()
	kernel, initrd := g.image(t)
	text, err := g.DomainXML(kernel, initrd, g.serial)
	if err != nil {
		t.Fatalf("%v", err)
	}
	file := filepath.Join(g.node.Dir, g.Domain+".xml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatalf("domain XML: %v", err)
	}
	return file
}

// image returns what the guest boots.
func (s Spec) image(t T) (kernel, initrd string) {
	t.Helper()
	switch {
	case s.Unbootable:
		return "", ""
	case s.Panics:
		return firmwareImage(t, "panic", panics), ""
	case s.Firmware:
		return HaltImage(t), ""
	default:
		return GuestImage(t)
	}
}

// findProcess finds the QEMU process. It must run right after libvirt has said that the
// domain runs.
func (g *Guest) findProcess(t T) {
	t.Helper()
	text := readText(filepath.Join(g.node.RunDir(), g.Domain+".pid"))
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("QEMU's pid file of %s: %v", g.Domain, err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pidfd of QEMU %d (%s): %v", pid, g.Domain, err)
	}
	stat := readText(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 20 {
		t.Fatalf("/proc/%d/stat: %q", pid, stat)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		t.Fatalf("start time of QEMU %d: %v", pid, err)
	}
	g.PID, g.StartTime, g.pidfd, g.since = pid, start, fd, monotonic(t)
}

func (g *Guest) cleanup(t T) {
	if t.Failed() {
		t.Logf("guest %s said:\n%sits QEMU said:\n%s", g.Domain, g.Serial(), g.QEMULog())
	}
	// libvirt may be dead or hang, so the guest is killed by signals.
	_ = unix.PidfdSendSignal(g.pidfd, unix.SIGCONT, nil, 0)
	_ = unix.PidfdSendSignal(g.pidfd, unix.SIGKILL, nil, 0)
	ended(g.pidfd, waitTimeout)
	_ = unix.Close(g.pidfd)
}

// WaitUp waits until the guest listens for the power button.
func (g *Guest) WaitUp(t T) {
	t.Helper()
	if g.Firmware {
		return
	}
	up := func() bool { return strings.Contains(g.Serial(), "vmgrace-guest: up") || g.Gone() }
	Eventually(t, waitTimeout, up, "guest %s is up", g.Domain)
	if g.Gone() {
		t.Fatalf("guest %s ended while it booted: %s%s", g.Domain, g.Serial(), g.QEMULog())
	}
}

// Serial returns what the guest has written to its serial console.
func (g *Guest) Serial() string { return readText(g.serial) }

// Presses returns how many presses of the power button the guest has noticed.
func (g *Guest) Presses() int { return strings.Count(g.Serial(), "vmgrace-guest: press ") }

// QEMULog returns this instance's part of QEMU's log.
func (g *Guest) QEMULog() string {
	text := readText(g.log)
	return text[min(g.logPos, len(text)):]
}

// Termination is a signal that ended QEMU, as QEMU's log has it.
type Termination struct {
	At     time.Time // to the microsecond
	Signal int
	// PID and Process say who sent the signal.
	PID     int
	Process string
}

// Terminated returns the first signal that ended QEMU, according to QEMU's log. ok is false
// while the log has none. SIGKILL never leaves a line there.
func (g *Guest) Terminated() (s Termination, ok bool) { return ParseTermination(g.QEMULog()) }

// terminating matches a line such as "2026-01-02T03:04:05.678901Z qemu-system-x86_64:
// terminating on signal 15 from pid 42 (/usr/sbin/libvirtd)".
var terminating = regexp.MustCompile(`(?m)^(\S+Z) \S+ terminating on signal (\d+)(?: from pid (\d+) \((.*)\))?$`)

// ParseTermination finds the first line about a terminating signal in QEMU's log.
func ParseTermination(log string) (s Termination, ok bool) {
	m := terminating.FindStringSubmatch(log)
	if m == nil {
		return s, false
	}
	at, err := time.Parse(time.RFC3339Nano, m[1])
	if err != nil {
		return s, false
	}
	s = Termination{At: at, Process: m[4]}
	s.Signal, _ = strconv.Atoi(m[2]) // only digits
	s.PID, _ = strconv.Atoi(m[3])    // only digits, or empty
	return s, true
}

// Gone reports whether the QEMU process has ended.
func (g *Guest) Gone() bool { return ended(g.pidfd, 0) }

// WaitGone waits for the end of the QEMU process and returns the time at which it saw it.
func (g *Guest) WaitGone(t T, within time.Duration) time.Time {
	t.Helper()
	if !ended(g.pidfd, within) {
		t.Fatalf("QEMU of %s is still there after %v", g.Domain, within)
	}
	return time.Now()
}

// Signal sends a signal to QEMU.
func (g *Guest) Signal(t T, sig syscall.Signal) {
	t.Helper()
	if err := unix.PidfdSendSignal(g.pidfd, sig, nil, 0); err != nil {
		t.Fatalf("%v to QEMU of %s: %v", sig, g.Domain, err)
	}
}

// Virsh runs a virsh command on the domain: "suspend", "resume", "destroy",
// "shutdown", "dompmsuspend", "mem", ...
func (g *Guest) Virsh(t T, command string, args ...string) string {
	t.Helper()
	return g.node.Virsh(t, append([]string{command, g.Domain}, args...)...)
}
