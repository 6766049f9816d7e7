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

func TestALibvirtdFrozenForNinetySecondsCostsNoDeadlineAndNothingAfterwards(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	first := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=0") // what is kept open is open now
	first.signal(t)
	first.stopped(t, a, "LauncherSignal", "Forced")
	before := use(t, a)
	short := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=5")
	long := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=60")
	polite := guarded(t, a, n, node.Spec{}, "--grace-period=600")

	frozen := time.Now()
	freeze(t, n)
	fromShort, fromLong := short.signal(t), long.signal(t)
	polite.signal(t)
	short.terminated(t, fromShort, 5*time.Second, late)
	long.terminated(t, fromLong, 60*time.Second, late)
	short.stopped(t, a, "LauncherSignal", "Forced")
	long.stopped(t, a, "LauncherSignal", "Forced")
	passes(t, frozen.Add(90*time.Second))
	during := use(t, a)
	thaw(t, n)

	polite.stopped(t, a, "LauncherSignal", "Graceful")
	later := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=2")
	later.terminated(t, later.signal(t), 2*time.Second, late)
	later.stopped(t, a, "LauncherSignal", "Forced")
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 1 {
		t.Errorf("vmgrace_libvirt_up is %v", up)
	}
	// As long as there are launcher directories they are asked about, several at
	// once. Connections that nobody uses are closed after a minute. A Go program
	// keeps its threads for later use: bounded, and no more the next time.
	for _, v := range []vm{first, short, long, polite, later} {
		v.removed(t, a)
	}
	node.Eventually(t, 2*time.Minute, func() bool { return use(t, a).fds <= before.fds }, "more than the %d fds of the beginning", before.fds)
	after := use(t, a)
	t.Logf("before %+v, frozen %+v, after %+v", before, during, after)
	if after.threads > before.threads+40 || after.rss > before.rss+16<<20 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	again := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=25")
	freeze(t, n)
	again.terminated(t, again.signal(t), 25*time.Second, late)
	thaw(t, n)
	again.stopped(t, a, "LauncherSignal", "Forced")
	if second := use(t, a); second.threads > after.threads+4 {
		t.Errorf("%d threads after the first time, %d after the second", after.threads, second.threads)
	}
}

func TestALibvirtdRestartedAgainAndAgainInMidGraceMovesNothing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t, "--shutdown-retry-interval=1s").Start(t)
	deaf := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=25")
	stubborn := guarded(t, a, n, node.Spec{Behaviour: "presses=8"}, "--grace-period=600")
	from := deaf.signal(t)
	stubborn.signal(t)
	deadline := deaf.begun(t)
	for range 5 {
		n.RestartLibvirtd(t)
		presses := stubborn.Presses()
		if presses < 7 {
			node.Eventually(t, soon, func() bool { return stubborn.Presses() > presses || stubborn.Gone() }, "not asked after a restart")
		}
		if !deaf.Gone() && deaf.launcher.Status().Deadline != deadline {
			t.Errorf("the deadline moved from %s to %s", deadline, deaf.launcher.Status().Deadline)
		}
	}
	deaf.terminated(t, from, 25*time.Second, late)
	deaf.stopped(t, a, "LauncherSignal", "Forced")
	stubborn.stopped(t, a, "LauncherSignal", "Graceful")
	later := guarded(t, a, n, node.Spec{}, "--grace-period=60")
	later.signal(t)
	later.stopped(t, a, "LauncherSignal", "Graceful")
}

func TestALibvirtSocketThatIsAwayIsNoticedWhenItIsBack(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	deaf := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=5")
	polite := guarded(t, a, n, node.Spec{}, "--grace-period=600")
	socket := filepath.Join(n.Dir, "run", "libvirt-sock")
	move(t, socket, socket+".away")
	a.Restart(t) // without connections from before
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 0 {
		t.Errorf("vmgrace_libvirt_up is %v", up)
	}
	from := deaf.signal(t)
	polite.signal(t)
	deaf.terminated(t, from, 5*time.Second, late)
	deaf.stopped(t, a, "LauncherSignal", "Forced")
	move(t, socket+".away", socket)
	polite.stopped(t, a, "LauncherSignal", "Graceful")
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
	deaf := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=8")
	polite := guarded(t, a, n, node.Spec{}, "--grace-period=600")
	a.Kill()
	var idle []net.Conn
	for range most {
		c, err := net.Dial("unix", filepath.Join(n.Dir, "run", "libvirt-sock"))
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
	from := deaf.signal(t)
	polite.signal(t)
	deaf.terminated(t, from, 8*time.Second, late)
	deaf.stopped(t, a, "LauncherSignal", "Forced")
	if polite.Presses() != 0 {
		t.Error("asked without a connection: this tests nothing")
	}
	for _, c := range idle {
		_ = c.Close() // nothing was sent
	}
	polite.stopped(t, a, "LauncherSignal", "Graceful")
}

func TestCallsThatAreNeverAnsweredCostNoDeadlineAndHideNoNewVM(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	wall := newWall(t, filepath.Join(n.Dir, "run", "libvirt-sock"), filepath.Join(n.Dir, "wall"))
	a := n.Agent(t, "--libvirt-uri", "qemu:///system?socket="+wall.path).Start(t)
	deaf := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=8")
	polite := guarded(t, a, n, node.Spec{}, "--grace-period=600")
	wall.close()
	from := deaf.signal(t)
	polite.signal(t)
	deaf.terminated(t, from, 8*time.Second, late)
	deaf.stopped(t, a, "LauncherSignal", "Forced")
	// Both agents, the one with connections from before and one without, see
	// and guard a VM that starts now.
	for range 2 {
		young := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=3")
		young.terminated(t, young.signal(t), 3*time.Second, late)
		young.stopped(t, a, "LauncherSignal", "Forced")
		lateness := node.Lateness(t)
		code, took := a.Term(t)
		if machine := lateness(); code != 0 || took > time.Second+machine {
			t.Errorf("SIGTERM while all calls hang: exit status %d after %v; the machine is %v late", code, took, machine)
		}
		a.Start(t)
	}
	if polite.Presses() != 0 {
		t.Error("asked through the wall: this tests nothing")
	}
	wall.open() // as a restart of libvirtd does, it also ends what hangs
	polite.stopped(t, a, "LauncherSignal", "Graceful")
}

func TestAStateChangeLockThatIsHeldDelaysNeitherADeadlineNorANeighbour(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t, "--destroy-timeout=2s").Start(t)
	locked := guarded(t, a, n, node.Spec{}, "--grace-period=600")
	doomed := guarded(t, a, n, node.Spec{Firmware: true}, "--grace-period=5")
	neighbour := guarded(t, a, n, node.Spec{}, "--grace-period=60")
	control := guarded(t, a, n, node.Spec{}, "--grace-period=60")
	fromControl := control.signal(t)
	usual := control.WaitGone(t, soon).Sub(fromControl)
	for _, v := range []vm{locked, doomed} {
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

	locked.signal(t)
	from := doomed.signal(t)
	locked.begun(t)
	doomed.begun(t)
	passes(t, time.Now().Add(200*time.Millisecond)) // both requests hang in libvirt now
	fromNeighbour := neighbour.signal(t)
	took := neighbour.WaitGone(t, soon).Sub(fromNeighbour)
	t.Logf("the neighbour took %v, another one before the lock was held %v", took, usual)
	if took > usual+late {
		t.Error("the neighbour had to wait")
	}
	// A stopped QEMU dies by the SIGKILL after --destroy-timeout.
	if late := doomed.WaitGone(t, soon).Sub(from.Add(7 * time.Second)); late < 0 || late > time.Second {
		t.Errorf("died %v after deadline + destroy-timeout", late)
	}
	doomed.stopped(t, a, "LauncherSignal", "Forced")
	node.Eventually(t, time.Minute, func() bool { return strings.Contains(a.Log(), "state change lock") }, "libvirt did not say that the lock is held")
	if locked.Gone() {
		t.Fatal("ended before its deadline")
	}
	locked.Signal(t, syscall.SIGCONT)
	locked.stopped(t, a, "LauncherSignal", "Graceful")
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

// passes waits until a time is there.
func passes(t *testing.T, at time.Time) {
	t.Helper()
	node.Eventually(t, time.Until(at)+soon, func() bool { return time.Now().After(at) }, "%v", at)
}
