package node_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

var shared *node.Node

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(n *node.Node) int {
		shared = n
		return m.Run()
	}))
}

func press(t *testing.T, g *node.Guest) {
	t.Helper()
	g.Virsh(t, "shutdown", "--mode", "acpi")
}

// hears presses the power button and waits until the guest has noticed its nth press.
func hears(t *testing.T, g *node.Guest, n int) {
	t.Helper()
	press(t, g)
	node.Eventually(t, time.Minute, func() bool { return g.Presses() == n }, "press %d is noticed", n)
}

func TestPoliteGuestPowersOffAtOnePress(t *testing.T) {
	t.Parallel()
	g := shared.Boot(t, node.Spec{Grace: "33"})
	xml := g.Virsh(t, "dumpxml")
	if !strings.Contains(xml, "<kubevirt:deletionGracePeriodSeconds>33<") {
		t.Errorf("no grace period in the metadata of %s", xml)
	}

	press(t, g)
	g.WaitGone(t, time.Minute)

	if g.Presses() != 1 {
		t.Errorf("the guest noticed %d presses, want 1", g.Presses())
	}
	// QEMU runs with -no-shutdown, so libvirtd ends it.
	if s, ok := g.Terminated(); !ok || s.PID != shared.Libvirtd().PID() {
		t.Errorf("QEMU's log has %+v, want a signal from libvirtd %d", s, shared.Libvirtd().PID())
	}
}

func TestDeafGuestNoticesAndStays(t *testing.T) {
	t.Parallel()
	g := shared.Boot(t, node.Spec{Behaviour: "deaf"})

	hears(t, g, 1)
	hears(t, g, 2)

	node.Never(t, time.Second, g.Gone, "the guest ended")
}

func TestSlowGuestTakesItsTime(t *testing.T) {
	t.Parallel()
	g := shared.Boot(t, node.Spec{Behaviour: "slow=2"})

	hears(t, g, 1)
	begin := time.Now()
	gone := g.WaitGone(t, time.Minute)

	if took := gone.Sub(begin); took < 1500*time.Millisecond {
		t.Errorf("the guest took %v, want 2 s", took)
	}
}

func TestBootingGuestLosesAnEarlyPress(t *testing.T) {
	t.Parallel()
	g := shared.Start(t, node.Spec{Behaviour: "boot=3"})
	booting := func() bool { return strings.Contains(g.Serial(), "vmgrace-guest: booting") }
	node.Eventually(t, time.Minute, booting, "the guest boots")

	press(t, g)
	g.WaitUp(t)
	node.Never(t, time.Second, func() bool { return g.Presses() > 0 || g.Gone() }, "the early press counted")

	press(t, g)
	g.WaitGone(t, time.Minute)
}

func TestGuestThatNeedsTwoPresses(t *testing.T) {
	t.Parallel()
	g := shared.Boot(t, node.Spec{Behaviour: "presses=2"})

	hears(t, g, 1)
	node.Never(t, time.Second, g.Gone, "one press was enough")
	press(t, g)

	g.WaitGone(t, time.Minute)
}

func TestFirmwareGuestIsDeaf(t *testing.T) {
	t.Parallel()
	g := shared.Boot(t, node.Spec{Firmware: true})

	press(t, g)

	node.Never(t, time.Second, g.Gone, "the guest ended")
}

func TestGuestAgents(t *testing.T) {
	t.Parallel()
	ask := func(t *testing.T, g *node.Guest) error {
		t.Helper()
		g.Virsh(t, "guest-agent-timeout", "--timeout", "2")
		// The timeout is needed: libvirt waits a minute for a guest that does not power
		// off.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := shared.TryVirsh(ctx, "shutdown", g.Domain, "--mode", "agent")
		return err
	}
	connected := func(t *testing.T, g *node.Guest) {
		t.Helper()
		open := func() bool { return strings.Contains(g.Virsh(t, "dumpxml"), "state='connected'") }
		node.Eventually(t, time.Minute, open, "the agent's channel is open")
	}
	t.Run("ok", func(t *testing.T) {
		t.Parallel()
		g := shared.Boot(t, node.Spec{GuestAgent: true, Behaviour: "deaf agent=ok"})
		connected(t, g)
		_ = ask(t, g) // the guest may end before it answers
		g.WaitGone(t, time.Minute)
	})
	t.Run("hung", func(t *testing.T) {
		t.Parallel()
		g := shared.Boot(t, node.Spec{GuestAgent: true, Behaviour: "agent=hung"})
		connected(t, g)
		if err := ask(t, g); err == nil || g.Gone() {
			t.Errorf("a hung agent answered: %v", err)
		}
	})
	t.Run("deaf", func(t *testing.T) {
		t.Parallel()
		g := shared.Boot(t, node.Spec{GuestAgent: true, Behaviour: "agent=deaf"})
		connected(t, g)
		_ = ask(t, g) // libvirt waits for an end that never comes
		heard := func() bool { return strings.Contains(g.Serial(), "agent shutdown") }
		node.Eventually(t, time.Minute, heard, "the agent is asked")
		node.Never(t, time.Second, g.Gone, "the guest ended")
	})
}

func TestSignalIsInQEMUsLog(t *testing.T) {
	t.Parallel()
	g := shared.Boot(t, node.Spec{Firmware: true})
	if _, ok := g.Terminated(); ok {
		t.Error("terminated before any signal")
	}
	before := time.Now().Add(-time.Millisecond)

	g.Signal(t, unix.SIGTERM)
	g.WaitGone(t, time.Minute)

	s, ok := g.Terminated()
	if !ok || s.PID != os.Getpid() || s.Signal != 15 || s.At.Before(before) || s.At.After(time.Now()) {
		t.Errorf("the log has %+v (%v), want a SIGTERM of this process, after %v", s, ok, before)
	}
}

func TestSecondInstanceOfADomain(t *testing.T) {
	t.Parallel()
	first := shared.Boot(t, node.Spec{Firmware: true, Persistent: true})
	first.Signal(t, unix.SIGTERM)
	first.WaitGone(t, time.Minute)
	off := func() bool { return first.Virsh(t, "domstate") == "shut off" }
	node.Eventually(t, time.Minute, off, "libvirt has noticed")

	second := shared.Boot(t, first.Spec)

	if second.UUID != first.UUID || second.PID == first.PID || second.StartTime <= first.StartTime {
		t.Errorf("first %s %d@%d, second %s %d@%d",
			first.UUID, first.PID, first.StartTime, second.UUID, second.PID, second.StartTime)
	}
	if _, ok := second.Terminated(); ok {
		t.Error("the second instance has the first one's log")
	}
}

func TestGuestsOutliveLibvirtd(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // the node that the tests share
	t.Run("node", func(t *testing.T) {
		n := node.New(t)
		g := n.Boot(t, node.Spec{Firmware: true})

		n.Libvirtd().Kill()
		if _, err := n.TryVirsh(t.Context(), "list"); err == nil {
			t.Error("a killed libvirtd answers")
		}
		if g.Gone() {
			t.Error("the guest died with libvirtd")
		}
		if err := n.StartLibvirtd(t.Context()); err != nil {
			t.Fatal(err)
		}
		if state := g.Virsh(t, "domstate"); state != "running" {
			t.Errorf("state after the restart: %s", state)
		}
	})
}

func TestALibvirtdThatCrashesIsStartedAgain(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("node", func(t *testing.T) {
		n := node.New(t)
		n.RestartAfterCrash()
		g := n.Boot(t, node.Spec{Firmware: true})
		crashed := n.Libvirtd()
		kit.Must(t, crashed.Signal(unix.SIGSEGV))
		again := func() bool {
			state, err := n.TryVirsh(t.Context(), "domstate", g.Domain)
			return err == nil && state == "running"
		}
		node.Eventually(t, time.Minute, again, "libvirtd is there again and has the guest")
		if n.Libvirtd() == crashed {
			t.Error("it did not crash")
		}
	})
}

func TestNothingOutlivesANode(t *testing.T) {
	n, err := node.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var g *node.Guest
	t.Run("guest", func(t *testing.T) {
		g = n.Boot(t, node.Spec{Firmware: true})
		n.Close()
		g.WaitGone(t, 0)
	})
	if n.Libvirtd().Running() {
		t.Error("libvirtd is left over")
	}
	if _, err := os.Stat(n.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is left over: %v", n.Dir, err)
	}
}
