package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestPoliteGuestIsOffWithinASecond(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{}, "--grace-period=30")

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
		`vmgrace_shutdown_duration_seconds_count{outcome="Graceful"}`:        1,
		`vmgrace_reaction_seconds_count{cause="LauncherSignal"}`:             1,
		`vmgrace_destroys_total{via="signal"}`:                               0,
		`vmgrace_libvirt_up`:                                                 1,
		`vmgrace_vms{phase="Running"}`:                                       0,
	} {
		if m[metric] != want {
			t.Errorf("%s is %v, want %v", metric, m[metric], want)
		}
	}
}

func TestDeafGuestIsDestroyedAtItsDeadline(t *testing.T) {
	a := shared.Agent(t, "--shutdown-retry-interval=1s", "-v").Start(t)
	v := a.Guarded(t, node.Spec{Behaviour: "deaf"}, "--grace-period=4")

	from := v.SignalShim(t)
	deadline := node.WallTime(t, v.WaitBegun(t))
	node.Eventually(t, soon, func() bool {
		s, ok := a.StatusOf(t, v.Guest)
		return ok && s.Phase == "ShuttingDown" && s.Cause == "LauncherSignal" && s.GracePeriodSeconds == 4 && s.RemainingSeconds != nil && *s.RemainingSeconds > 0
	}, "status does not say ShuttingDown")
	v.WaitTerminated(t, from.Add(4*time.Second), 50*ms)
	if off := deadline.Sub(from.Add(4 * time.Second)); off < -ms || off > 50*ms {
		t.Errorf("status.json's deadline is %v off", off)
	}
	v.WaitExit(t, 0)
	v.WaitStopped(t, "LauncherSignal", "Forced")
	m := a.Metrics(t)
	if n := m[`vmgrace_shutdown_requests_total{mode="acpi",result="ok"}`]; n != 4 {
		t.Errorf("%v requests in 4 s, want 4 (each second)", n)
	}
	if m[`vmgrace_destroys_total{via="signal"}`] != 1 || m[`vmgrace_deadline_overshoot_seconds_count`] != 1 {
		t.Errorf("destroys by signal: %v, overshoots: %v; want 1 and 1", m[`vmgrace_destroys_total{via="signal"}`], m[`vmgrace_deadline_overshoot_seconds_count`])
	}
}

func TestGracePeriodZeroIsDestroyedAtOnceWithoutARequest(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{}, "--grace-period=0")
	v.WaitTerminated(t, v.SignalShim(t), 200*ms)
	v.WaitStopped(t, "LauncherSignal", "Forced")
	if n := v.Presses(); n != 0 {
		t.Errorf("%d presses, want none", n)
	}
}

func TestAnInvalidGracePeriodIsNeverZero(t *testing.T) {
	const fallback = 3 * time.Second
	a := shared.Agent(t, "--default-grace-period=3s").Start(t)
	t.Run("stated as", func(t *testing.T) {
		for name, stated := range map[string]string{
			"negative": "-5", "text": `"soon"`, "a fraction": "1.5", "null": "null", "an object": `{"a":1}`,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := shared.Boot(t, node.Spec{Firmware: true})
				l := a.Launcher(t, g)
				l.Write(t, "vm.json", fmt.Sprintf(`{"version":1,"namespace":%q,"name":%q,"uid":%q,"gracePeriodSeconds":%s}`, l.Namespace, l.Name, l.UID, stated))
				v := &node.VM{Guest: g, Agent: a, Launcher: l}
				v.WaitGuarded(t)
				from := time.Now()
				l.Touch(t)
				v.WaitTerminated(t, from.Add(fallback), 50*ms)
				v.WaitStopped(t, "LauncherSignal", "Forced")
			})
		}
	})
	if n := a.Metrics(t)[`vmgrace_rejected_total{reason="grace_period"}`]; n != 4 {
		t.Errorf("%v rejected grace periods, want 4 (null states none)\n%s", n, a.Log())
	}
	if n := a.Said("the stated grace period is invalid"); n != 4 {
		t.Errorf("the log says it %d times, want once for each VM\n%s", n, a.Log())
	}
}

func TestGraceOfTheDomainWinsAndALateOneCounts(t *testing.T) {
	a := shared.Agent(t).Start(t)
	g := shared.Boot(t, node.Spec{Firmware: true})
	l := a.Launcher(t, g)
	period := func(want int64) {
		t.Helper()
		node.Eventually(t, soon, func() bool { s, ok := a.StatusOf(t, g); return ok && s.GracePeriodSeconds == want }, "the grace period is not %d s", want)
	}
	period(30) // nobody states a grace period
	shim := l.Shim(t, "--grace-period=45", fmt.Sprintf("--pid=%d", g.PID))
	period(45) // the launcher comes late
	g.Virsh(t, "metadata", "--uri", "http://kubevirt.io", "--key", "kubevirt", "--live", "--set",
		"<kubevirt><graceperiod><deletionGracePeriodSeconds>2</deletionGracePeriodSeconds></graceperiod></kubevirt>")
	period(2) // the domain's metadata wins
	v := &node.VM{Guest: g, Agent: a, Launcher: l, Shim: shim}
	v.WaitTerminated(t, v.SignalShim(t).Add(2*time.Second), 50*ms)
}

func TestAPausedGuestIsResumedAndShutsDown(t *testing.T) {
	a := shared.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{}, "--grace-period=30")
	v.Virsh(t, "suspend")
	from := v.SignalShim(t)
	v.WaitStopped(t, "LauncherSignal", "Graceful")
	shared.Within(t, 10*time.Second, from, time.Now(), "off")
}

func TestAGuestAgentIsAskedFirstAndAHungOneLeavesTimeForACPI(t *testing.T) {
	for _, c := range []struct {
		behaviour, mode string
		within          time.Duration
	}{
		// The guest is slow: libvirt answers with an error if the guest is off first.
		{"deaf agent=ok slow=1", "agent", 5 * time.Second},
		{"polite agent=hung", "acpi", 8 * time.Second},
		{"polite agent=deaf", "acpi", 8 * time.Second},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			t.Parallel()
			a := shared.Agent(t).Start(t)
			v := a.Guarded(t, node.Spec{Behaviour: c.behaviour, GuestAgent: true}, "--grace-period=10")
			from := v.SignalShim(t)
			v.WaitStopped(t, "LauncherSignal", "Graceful")
			shared.Within(t, c.within, from, time.Now(), "off")
			// The guest may be off before libvirt answers.
			node.Eventually(t, soon, func() bool {
				return a.Metrics(t)[fmt.Sprintf("vmgrace_shutdown_requests_total{mode=%q,result=\"ok\"}", c.mode)] >= 1
			}, "no request by "+c.mode+" worked")
		})
	}
}
