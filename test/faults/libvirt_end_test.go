package faults

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestAManagedSavedVMIsLostAndLeftAloneWhenItIsRestored(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true, Persistent: true}, "--grace-period=20")
	from := v.SignalShim(t)
	v.WaitBegun(t)
	v.Virsh(t, "managedsave")
	v.WaitStopped(t, "LauncherSignal", "Lost")
	v.WaitExit(t, 0)
	startAgain(t, n, v.Domain).leftAlone(t, a, from.Add(25*time.Second))
}

func TestACrashedQEMUIsLost(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	asked := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=60")
	unasked := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=60")
	asked.SignalShim(t)
	asked.WaitBegun(t)
	asked.Signal(t, syscall.SIGSEGV)
	unasked.Signal(t, syscall.SIGSEGV)
	asked.WaitStopped(t, "LauncherSignal", "Lost")
	unasked.WaitStopped(t, "", "Lost")
	asked.WaitExit(t, 0)
}

func TestAGuestThatRebootsInsteadIsDestroyedAtItsDeadline(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{OnPoweroff: "restart"}, "--grace-period=15")
	from := v.SignalShim(t)
	node.Eventually(t, soon, func() bool { return strings.Contains(v.Serial(), "reboot: Power down") }, "the guest does not power off")
	// If the guest had stayed off, libvirt would have ended QEMU long before.
	v.WaitTerminated(t, from.Add(15*time.Second), late)
	v.WaitStopped(t, "LauncherSignal", "Forced")
}

func TestADomainStartedAgainRightAfterItsEndIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	polite := a.Guarded(t, node.Spec{Persistent: true}, "--grace-period=10")
	deaf := a.Guarded(t, node.Spec{Firmware: true, Persistent: true}, "--grace-period=2")
	if a.Said("persistent or autostarted") == 0 {
		t.Error("no warning about a persistent domain")
	}
	from := polite.SignalShim(t)
	politeAgain := startAgain(t, n, polite.Domain)
	deaf.SignalShim(t)
	deafAgain := startAgain(t, n, deaf.Domain)
	// The metrics tell the outcomes: status.json may already be about the next instance.
	for _, outcome := range []string{"Graceful", "Forced"} {
		name := `vmgrace_shutdowns_total{cause="LauncherSignal",outcome="` + outcome + `"}`
		node.Eventually(t, soon, func() bool { return a.Metrics(t)[name] == 1 }, "%s: %v", name, a.Metrics(t)[name])
	}
	politeAgain.leftAlone(t, a, from.Add(15*time.Second))
	deafAgain.leftAlone(t, a, from.Add(15*time.Second))
}

// Given a VM that is destroyed in its grace period. When its domain is renamed and started
// again, then the agent leaves it alone at the old deadline. The test ends the VM first
// because libvirt 9.0 renames only domains that are off.
func TestARenamedDomainIsNotOurs(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true, Persistent: true}, "--grace-period=3")
	if _, err := n.TryVirsh(t.Context(), "domrename", v.Domain, v.Domain+"-2"); err == nil {
		t.Fatal("libvirt renames a running domain: this test has to learn it")
	}
	from := v.SignalShim(t)
	v.WaitBegun(t)
	v.Virsh(t, "destroy")
	renamed := v.Domain + "-2"
	v.Virsh(t, "domrename", renamed)
	started := startAgain(t, n, renamed)
	v.WaitStopped(t, "LauncherSignal", "Lost")
	node.WaitUntil(t, from.Add(6*time.Second))
	if started.gone() {
		t.Error("the renamed domain was destroyed for the old one")
	}
	if len(a.Status(t)) != 0 {
		t.Errorf("a domain without a launcher directory was recorded: %+v", a.Status(t))
	}
}

// instance is a QEMU process that node.Start has not started.
type instance struct {
	domain     string
	pid, pidfd int
}

// startAgain starts a defined domain as soon as libvirt allows it.
func startAgain(t *testing.T, n *node.Node, domain string) instance {
	t.Helper()
	node.Eventually(t, time.Minute, func() bool {
		_, err := n.TryVirsh(t.Context(), "start", domain)
		return err == nil
	}, "%s does not start again", domain)
	return running(t, n, domain)
}

// running returns the QEMU process of a domain that runs, by libvirt's PID file.
func running(t *testing.T, n *node.Node, domain string) instance {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.RunDir(), domain+".pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return instance{domain, pid, fd}
}

func (i instance) gone() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(i.pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// leftAlone checks that the agent guards the instance as Running, and that the instance
// still runs at the given time.
func (i instance) leftAlone(t *testing.T, a *node.Agent, until time.Time) {
	t.Helper()
	guarded := func() bool {
		for _, s := range a.Status(t) {
			if s.Domain == i.domain && s.Phase == "Running" {
				return true
			}
		}
		return false
	}
	node.Eventually(t, soon, guarded, "%s is not guarded again", i.domain)
	node.WaitUntil(t, until)
	if i.gone() || !guarded() {
		t.Errorf("%s was ended for an earlier instance: %+v", i.domain, a.Status(t))
	}
}
