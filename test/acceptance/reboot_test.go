package acceptance

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	login1  = "org.freedesktop.login1"
	bus     = `<busconfig><type>session</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth><policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`
	manager = login1 + ".Manager"
)

// machine is a logind on a real bus that prepares a shutdown, and tells when it
// would go on.
type machine struct {
	conn      *dbus.Conn
	preparing atomic.Bool
	delay     time.Duration
	wait, end *os.File // end is given away; wait ends when nobody has it any more
}

func newMachine(t *testing.T, socket string, delay time.Duration) *machine {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bus.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, bus, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), "dbus-daemon", "--config-file="+file, "--nofork", "--print-address")
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	m := &machine{delay: delay}
	if m.wait, m.end, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	if m.conn, err = dbus.Connect("unix:path=" + socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.conn.Close() })
	for iface, methods := range map[string]map[string]any{
		manager: {"Inhibit": func(string, string, string, string) (dbus.UnixFD, *dbus.Error) { return dbus.UnixFD(m.end.Fd()), nil }},
		"org.freedesktop.DBus.Properties": {"Get": func(_, property string) (dbus.Variant, *dbus.Error) {
			if property == "PreparingForShutdown" {
				return dbus.MakeVariant(m.preparing.Load()), nil
			}
			return dbus.MakeVariant(uint64(m.delay / time.Microsecond)), nil
		}},
	} {
		if err := m.conn.ExportMethodTable(methods, "/org/freedesktop/login1", iface); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.conn.RequestName(login1, 0); err != nil {
		t.Fatal(err)
	}
	return m
}

// shutsDown announces a shutdown. What it returns gives the time at which logind goes on.
func (m *machine) shutsDown(t *testing.T) <-chan time.Time {
	t.Helper()
	down := make(chan time.Time, 1)
	_ = m.end.Close()
	go func() {
		_, _ = m.wait.Read(make([]byte, 1))
		down <- time.Now()
	}()
	m.preparing.Store(true)
	if err := m.conn.Emit("/org/freedesktop/login1", manager+".PrepareForShutdown", true); err != nil {
		t.Fatal(err)
	}
	return down
}

func TestANodeThatShutsDownGoesDownWhenItsVMsAreGone(t *testing.T) {
	socket := filepath.Join(shared.Dir, "bus")
	m := newMachine(t, socket, time.Minute)
	a := shared.Agent(t, "--dbus-socket="+socket, "--shutdown-retry-interval=1s").Start(t)
	polite := a.Guarded(t, node.Spec{}, "--grace-period=40")
	slow := a.Guarded(t, node.Spec{Behaviour: "slow=3"}, "--grace-period=40")
	paused := a.Guarded(t, node.Spec{}, "--grace-period=40")
	paused.Virsh(t, "suspend")
	deaf := a.Guarded(t, node.Spec{Behaviour: "deaf"}, "--grace-period=8")
	node.Eventually(t, soon, func() bool { return a.Metrics(t)["vmgrace_node_shutdown_delayed"] == 1 }, "shutdowns are delayed")

	from := time.Now()
	down := m.shutsDown(t)
	var last, at time.Time
	left := []*node.VM{polite, slow, paused, deaf}
	node.Eventually(t, 2*time.Minute, func() bool {
		select {
		case at = <-down:
		default:
		}
		before := len(left)
		left = slices.DeleteFunc(left, func(v *node.VM) bool { return v.Gone() })
		if len(left) < before {
			last = time.Now()
		}
		if !at.IsZero() && len(left) > 0 {
			t.Fatalf("the node went down with %d VMs", len(left))
		}
		return !at.IsZero()
	}, "the node goes down")
	if took := at.Sub(from); took < 8*time.Second {
		t.Errorf("it went down after %v; a guest had a grace period of 8 s", took)
	}
	shared.Within(t, 500*ms, last, at, "from the last VM's end: the node goes down")
	polite.WaitOutcome(t, "NodeShutdown", "Graceful")
	slow.WaitOutcome(t, "NodeShutdown", "Graceful")
	paused.WaitOutcome(t, "NodeShutdown", "Graceful")
	deaf.WaitOutcome(t, "NodeShutdown", "Forced")
}
