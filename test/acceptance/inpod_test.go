package acceptance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// The QEMU of these VMs is in the launcher pod, and their agent has no libvirt.

func TestAVMInItsPodIsShutDownWithoutLibvirt(t *testing.T) {
	a := shared.Agent(t, "--libvirt-uri=").WithoutLibvirt(t).Start(t)
	v := a.InLauncher(t, node.Spec{}, "--grace-period=30")
	from := v.SignalShim(t)
	shared.Within(t, time.Second, from, v.WaitGone(t, soon), "off")
	v.WaitExit(t, 0)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
	if n := v.Presses(); n != 1 {
		t.Errorf("%d presses of the power button, want 1", n)
	}
	m := a.Metrics(t)
	for metric, want := range map[string]float64{
		`vmgrace_shutdowns_total{cause="LauncherSignal",outcome="Graceful"}`: 1,
		`vmgrace_shutdown_requests_total{mode="acpi",result="ok"}`:           1,
		`vmgrace_destroys_total{via="signal"}`:                               0,
	} {
		if m[metric] != want {
			t.Errorf("%s is %v, want %v", metric, m[metric], want)
		}
	}
	if _, there := m[`vmgrace_libvirt_up`]; there {
		t.Error("an agent without libvirt tells whether libvirt is up")
	}
}

func TestAGuestInItsPodThatIsOffEndsThoughItsQEMUStays(t *testing.T) {
	a := shared.Agent(t, "--libvirt-uri=").WithoutLibvirt(t).Start(t)
	v := a.InLauncher(t, node.Spec{NoShutdown: true}, "--grace-period=30")
	from := v.SignalShim(t)
	shared.Within(t, 2*time.Second, from, v.WaitGone(t, soon), "ended")
	v.WaitExit(t, 0)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
	if n := a.Metrics(t)[`vmgrace_destroys_total{via="signal"}`]; n != 0 {
		t.Errorf("%v destroys of a guest that was off", n)
	}
}

// Given a guest in its pod that ignores the power button and has an agent. When its launcher is
// signalled, then its agent is asked.
func TestAGuestInItsPodIsAskedByItsAgent(t *testing.T) {
	a := shared.Agent(t, "--libvirt-uri=").WithoutLibvirt(t).Start(t)
	v := a.InLauncher(t, node.Spec{GuestAgent: true, Behaviour: "deaf agent=frozen"}, "--grace-period=60")
	v.SignalShim(t)
	v.WaitGone(t, soon)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
	if m := a.Metrics(t); m[`vmgrace_shutdown_requests_total{mode="agent",result="ok"}`] == 0 {
		t.Errorf("%v", m)
	}
}

func TestAMonitorThatSomebodyElseHoldsIsSeen(t *testing.T) {
	a := shared.Agent(t, "--libvirt-uri=").WithoutLibvirt(t).Start(t)
	v := a.InLauncher(t, node.Spec{}, "--grace-period=10")
	defer v.HoldMonitor(t)()
	v.SignalShim(t)
	node.Eventually(t, soon, func() bool { return v.Launcher.Says("vm.json", `"result":"monitor busy`) }, "vm.json does not say it")
	node.Eventually(t, soon, func() bool {
		return a.Metrics(t)[`vmgrace_shutdown_requests_total{mode="acpi",result="busy"}`] > 0
	}, "no metric says it")
	v.WaitStopped(t, "LauncherSignal", "Forced")
}

func TestVMsInTheirPodsKeepTheirDeadlines(t *testing.T) {
	a := shared.Agent(t, "--libvirt-uri=", "--shutdown-retry-interval=1s").Start(t)
	t.Run("guests", func(t *testing.T) {
		t.Run("deaf, the agent killed in mid-grace", func(t *testing.T) {
			v := a.InLauncher(t, node.Spec{Behaviour: "deaf"}, "--grace-period=5")
			from := v.SignalShim(t)
			v.WaitBegun(t)
			node.Eventually(t, soon, func() bool { return v.Presses() > 0 }, "it is asked")
			a.Restart(t)
			v.WaitTerminated(t, from.Add(5*time.Second), 50*ms)
			v.WaitExit(t, 0)
			v.WaitStopped(t, "LauncherSignal", "Forced")
			if n := v.Presses(); n < 2 {
				t.Errorf("%d presses, want one by each agent at least", n)
			}
		})
		t.Run("paused", func(t *testing.T) {
			v := a.InLauncher(t, node.Spec{}, "--grace-period=30")
			v.Monitor(t, "stop")
			v.SignalShim(t)
			v.WaitStopped(t, "LauncherSignal", "Graceful")
		})
		t.Run("at once", func(t *testing.T) {
			t.Run("frozen", func(t *testing.T) {
				t.Parallel()
				v := a.LaunchInside(t, node.Spec{Firmware: true}, "--grace-period=2")
				v.WaitGuarded(t)
				v.Signal(t, unix.SIGSTOP) // its monitor hangs too
				from := v.SignalShim(t)
				v.WaitKilled(t, from.Add(12*time.Second), 100*ms) // --destroy-timeout after the deadline
				v.WaitStopped(t, "LauncherSignal", "Forced")
			})
			// Given a command that hangs, one that fails, and one that does not exist. Then
			// the VM ends at its deadline.
			for _, how := range []string{"exec:sleep 300", "exec:false", "exec:/no/such/command"} {
				t.Run(how, func(t *testing.T) {
					t.Parallel()
					v := a.LaunchInside(t, node.Spec{Firmware: true}, "--grace-period=5", "--ask-with="+how)
					v.WaitGuarded(t)
					v.WaitTerminated(t, v.SignalShim(t).Add(5*time.Second), 50*ms)
					v.WaitStopped(t, "LauncherSignal", "Forced")
				})
			}
		})
		t.Run("grace 0", func(t *testing.T) {
			v := a.LaunchInside(t, node.Spec{Firmware: true}, "--grace-period=0")
			v.WaitGuarded(t)
			v.WaitTerminated(t, v.SignalShim(t), 200*ms)
			v.WaitStopped(t, "LauncherSignal", "Forced")
		})
		t.Run("the shim killed in mid-grace", func(t *testing.T) {
			v := a.LaunchInside(t, node.Spec{Firmware: true}, "--grace-period=30")
			v.WaitGuarded(t)
			v.SignalShim(t)
			v.WaitBegun(t)
			v.Shim.Kill()
			v.WaitGone(t, soon)
			v.WaitStopped(t, "LauncherSignal", "Lost") // neither the agent nor the guest ended it
		})
		t.Run("the shim killed, the agent dead", func(t *testing.T) {
			v := a.LaunchInside(t, node.Spec{Firmware: true}, "--grace-period=30")
			v.WaitGuarded(t)
			a.Kill()
			v.Shim.Kill()
			v.WaitGone(t, soon)
			a.Start(t)
			node.Eventually(t, soon, func() bool { _, ok := a.StatusOf(t, v.Guest); return !ok }, "its record is still there")
		})
		t.Run("the shim killed", func(t *testing.T) {
			v := a.LaunchInside(t, node.Spec{Firmware: true}, "--grace-period=30")
			v.WaitGuarded(t)
			v.Shim.Kill() // QEMU ends with the shim, which is PID 1
			v.WaitGone(t, soon)
			node.Eventually(t, soon, func() bool { _, ok := a.StatusOf(t, v.Guest); return !ok }, "its record is still there")
		})
	})
}

func TestALibvirtOfThePodsOwnIsAskedByACommand(t *testing.T) {
	a := shared.Agent(t, "--libvirt-uri=").Start(t)
	v := a.InOwnLibvirt(t, "libvirtd", node.Spec{}, "--grace-period=30")
	if out := shared.Virsh(t, "list", "--all", "--name"); strings.Contains(out, v.Domain) {
		t.Fatalf("the node's libvirt knows it: %s", out)
	}
	v.SignalShim(t)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
	v.WaitExit(t, 0)
	if n := v.Presses(); n != 1 {
		t.Errorf("%d presses of the power button, want 1", n)
	}
}

func TestLibvirtsDeathIsNothingToVMsInTheirPods(t *testing.T) {
	t.Parallel()
	// Given five VMs of each kind on one node.
	n := node.New(t)
	a := n.Agent(t).Start(t)
	const each = 5
	polite := a.LaunchInside(t, node.Spec{}, "--grace-period=30")
	var inside, beside []*node.VM
	for i := range each {
		beside = append(beside, a.VM(t, n.Start(t, node.Spec{Firmware: true}), "--grace-period=4"))
		if i > 0 {
			inside = append(inside, a.LaunchInside(t, node.Spec{Firmware: true}, "--grace-period=4"))
		}
	}
	polite.WaitUp(t)
	for _, v := range slices.Concat(inside, beside, []*node.VM{polite}) {
		v.WaitGuarded(t)
	}
	// When libvirtd is dead and all shims are signalled,
	n.Libvirtd().Kill()
	deaf := slices.Concat(inside, beside)
	var from []time.Time
	for _, v := range deaf {
		from = append(from, v.SignalShim(t))
	}
	off := polite.SignalShim(t)
	// then each VM ends on time.
	n.Within(t, time.Second, off, polite.WaitGone(t, soon), "off")
	polite.WaitStopped(t, "LauncherSignal", "Graceful")
	for i, v := range deaf {
		v.WaitTerminated(t, from[i].Add(4*time.Second), 50*ms)
	}
	for _, v := range inside {
		v.WaitStopped(t, "LauncherSignal", "Forced")
	}
	if up := a.Metrics(t)["vmgrace_libvirt_up"]; up != 0 {
		t.Errorf("vmgrace_libvirt_up is %v", up)
	}
}
