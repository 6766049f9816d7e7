package faults

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestALibvirtdFrozenForNinetySecondsCostsNoDeadline(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	first := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=0") // opens the connections that the agent keeps
	first.SignalShim(t)
	first.WaitStopped(t, "LauncherSignal", "Forced")
	before := use(t, a)
	short := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=5")
	long := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=60")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=600")

	frozen := time.Now()
	freeze(t, n)
	fromShort, fromLong := short.SignalShim(t), long.SignalShim(t)
	polite.SignalShim(t)
	short.WaitTerminated(t, fromShort.Add(5*time.Second), late)
	long.WaitTerminated(t, fromLong.Add(60*time.Second), late)
	short.WaitStopped(t, "LauncherSignal", "Forced")
	long.WaitStopped(t, "LauncherSignal", "Forced")
	node.WaitUntil(t, frozen.Add(90*time.Second))
	during := use(t, a)
	thaw(t, n)

	polite.WaitStopped(t, "LauncherSignal", "Graceful")
	later := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=2")
	later.WaitTerminated(t, later.SignalShim(t).Add(2*time.Second), late)
	later.WaitStopped(t, "LauncherSignal", "Forced")
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 1 {
		t.Errorf("vmgrace_libvirt_up is %v", up)
	}
	// The agent asks libvirt about every VM that has a launcher directory, several at once.
	// It closes unused connections after some seconds. A Go program keeps its threads for
	// later use: their number is bounded, and it does not grow again the second time.
	for _, v := range []*node.VM{first, short, long, polite, later} {
		if err := os.RemoveAll(v.Launcher.Dir); err != nil { // as kubelet does
			t.Fatal(err)
		}
	}
	node.Eventually(t, 2*time.Minute, func() bool { return use(t, a).fds <= before.fds }, "more than the %d fds of the beginning", before.fds)
	after := use(t, a)
	t.Logf("before %+v, frozen %+v, after %+v", before, during, after)
	if after.threads > before.threads+40 || after.rss > before.rss+16<<20 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	again := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=25")
	freeze(t, n)
	again.WaitTerminated(t, again.SignalShim(t).Add(25*time.Second), late)
	thaw(t, n)
	again.WaitStopped(t, "LauncherSignal", "Forced")
	if second := use(t, a); second.threads > after.threads+4 {
		t.Errorf("%d threads after the first time, %d after the second", after.threads, second.threads)
	}
}

func TestALibvirtdRestartedAgainAndAgainInMidGraceMovesNothing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t, "--shutdown-retry-interval=1s").Start(t)
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=25")
	stubborn := a.Guarded(t, node.Spec{Behaviour: "presses=8"}, "--grace-period=600")
	from := deaf.SignalShim(t)
	stubborn.SignalShim(t)
	deadline := deaf.WaitBegun(t)
	for range 5 {
		n.RestartLibvirtd(t)
		presses := stubborn.Presses()
		if presses < 7 {
			node.Eventually(t, soon, func() bool { return stubborn.Presses() > presses || stubborn.Gone() }, "not asked after a restart")
		}
		if !deaf.Gone() && deaf.Launcher.Status().Deadline != deadline {
			t.Errorf("the deadline moved from %s to %s", deadline, deaf.Launcher.Status().Deadline)
		}
	}
	deaf.WaitTerminated(t, from.Add(25*time.Second), late)
	deaf.WaitStopped(t, "LauncherSignal", "Forced")
	stubborn.WaitStopped(t, "LauncherSignal", "Graceful")
	later := a.Guarded(t, node.Spec{}, "--grace-period=60")
	later.SignalShim(t)
	later.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestALibvirtSocketThatIsAwayIsNoticedWhenItIsBack(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=5")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=600")
	socket := n.Socket()
	move(t, socket, socket+".away")
	a.Restart(t) // the new agent has no open connection
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 0 {
		t.Errorf("vmgrace_libvirt_up is %v", up)
	}
	from := deaf.SignalShim(t)
	polite.SignalShim(t)
	deaf.WaitTerminated(t, from.Add(5*time.Second), late)
	deaf.WaitStopped(t, "LauncherSignal", "Forced")
	move(t, socket+".away", socket)
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestALibvirtdWithoutAFreeConnectionCostsNoDeadline(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	const most = 10
	conf := filepath.Join(n.Dir, "etc", "libvirtd.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, append(text, "max_clients = 10\nmax_anonymous_clients = 10\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	n.RestartLibvirtd(t)
	a := n.Agent(t).Start(t)
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=8")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=600")
	a.Kill()
	var idle []net.Conn
	for range most {
		c, err := net.Dial("unix", n.Socket())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	a.Start(t)
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 0 {
		t.Errorf("vmgrace_libvirt_up is %v: the limit is not reached, this tests nothing", up)
	}
	from := deaf.SignalShim(t)
	polite.SignalShim(t)
	deaf.WaitTerminated(t, from.Add(8*time.Second), late)
	deaf.WaitStopped(t, "LauncherSignal", "Forced")
	if polite.Presses() != 0 {
		t.Error("asked without a connection: this tests nothing")
	}
	for _, c := range idle {
		_ = c.Close() // nothing was written to it
	}
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestCallsThatAreNeverAnsweredCostNoDeadlineAndHideNoNewVM(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	wall := newWall(t, n.Socket(), filepath.Join(n.Dir, "wall"))
	a := n.Agent(t, "--libvirt-uri", "qemu:///system?socket="+wall.path).Start(t)
	deaf := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=8")
	polite := a.Guarded(t, node.Spec{}, "--grace-period=600")
	wall.close()
	from := deaf.SignalShim(t)
	polite.SignalShim(t)
	deaf.WaitTerminated(t, from.Add(8*time.Second), late)
	deaf.WaitStopped(t, "LauncherSignal", "Forced")
	// Both this agent, which has open connections, and the next one, which has none, guard
	// a VM that starts now.
	for range 2 {
		young := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3")
		young.WaitTerminated(t, young.SignalShim(t).Add(3*time.Second), late)
		young.WaitStopped(t, "LauncherSignal", "Forced")
		begin := time.Now()
		code, took := a.Term(t)
		if machine := n.Late(begin, time.Now()); code != 0 || took > time.Second+machine {
			t.Errorf("SIGTERM while all calls hang: exit status %d after %v; the machine is %v late", code, took, machine)
		}
		a.Start(t)
	}
	if polite.Presses() != 0 {
		t.Error("asked through the wall: this tests nothing")
	}
	wall.open() // it also ends the calls that hang, as a restart of libvirtd does
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
}

func TestAHeldStateChangeLockDelaysNoDeadlineNorNeighbour(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t, "--destroy-timeout=2s").Start(t)
	locked := a.Guarded(t, node.Spec{}, "--grace-period=600")
	doomed := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=20")
	neighbour := a.Guarded(t, node.Spec{}, "--grace-period=60")
	control := a.Guarded(t, node.Spec{}, "--grace-period=60")
	fromControl := control.SignalShim(t)
	usual := control.WaitGone(t, soon).Sub(fromControl)
	for _, v := range []*node.VM{locked, doomed} {
		v.Signal(t, syscall.SIGSTOP)
		holder := n.Command("virsh", "-c", "qemu:///system", "qemu-monitor-command", v.Domain, `{"execute":"query-status"}`)
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	}
	node.Eventually(t, soon, func() bool {
		return strings.Contains(n.Virsh(t, "domcontrol", locked.Domain), "occupied") &&
			strings.Contains(n.Virsh(t, "domcontrol", doomed.Domain), "occupied")
	}, "the lock is not held")

	locked.SignalShim(t)
	from := doomed.SignalShim(t)
	locked.WaitBegun(t)
	doomed.WaitBegun(t)
	node.WaitUntil(t, time.Now().Add(200*time.Millisecond)) // both requests hang in libvirt now
	fromNeighbour := neighbour.SignalShim(t)
	took := neighbour.WaitGone(t, soon).Sub(fromNeighbour)
	t.Logf("the neighbour took %v, another one before the lock was held %v", took, usual)
	if doomed.Gone() {
		t.Error("the neighbour had to wait until the lock was free")
	}
	// Only the SIGKILL after --destroy-timeout ends a stopped QEMU.
	doomed.WaitKilled(t, from.Add(22*time.Second), late)
	doomed.WaitStopped(t, "LauncherSignal", "Forced")
	a.WaitSaid(t, "state change lock", 1)
	if locked.Gone() {
		t.Fatal("ended before its deadline")
	}
	locked.Signal(t, syscall.SIGCONT)
	locked.WaitStopped(t, "LauncherSignal", "Graceful")
}

func freeze(t *testing.T, n *node.Node) { t.Helper(); signalLibvirtd(t, n, syscall.SIGSTOP) }
func thaw(t *testing.T, n *node.Node)   { t.Helper(); signalLibvirtd(t, n, syscall.SIGCONT) }

func signalLibvirtd(t *testing.T, n *node.Node, s syscall.Signal) {
	t.Helper()
	if err := n.Libvirtd().Signal(s); err != nil {
		t.Fatal(err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}
