package node

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// VM is a guest with its launcher directory and its shim, and the agent that
// is to guard it.
type VM struct {
	*Guest
	Agent    *Agent
	Launcher *Launcher
	Shim     *Process // nil where the VM has none

	signalled time.Time // when SignalShim was called, if it was
}

// Guarded boots a guest with a shim and waits until the agent guards it.
// shimArgs come after the guest's --pid and may repeat it.
func (a *Agent) Guarded(t T, s Spec, shimArgs ...string) *VM {
	t.Helper()
	v := a.VM(t, a.node.Boot(t, s), shimArgs...)
	v.WaitGuarded(t)
	return v
}

// VM gives a guest a launcher directory and a shim, and waits for nothing.
// shimArgs are as for Guarded.
func (a *Agent) VM(t T, g *Guest, shimArgs ...string) *VM {
	t.Helper()
	l := a.Launcher(t, g)
	return &VM{Guest: g, Agent: a, Launcher: l, Shim: l.Shim(t, append([]string{fmt.Sprintf("--pid=%d", g.PID)}, shimArgs...)...)}
}

// WaitRegistered waits until the shim has written its vm.json.
func (v *VM) WaitRegistered(t T) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool { return v.Launcher.Has("vm.json") }, "the shim of %s does not register", v.Domain)
}

// WaitGuarded waits until the VM at rest is on record, with its UID.
func (v *VM) WaitGuarded(t T) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool {
		if v.Launcher.Status().Phase != "Running" { // the record comes first
			return false
		}
		s, ok := v.Agent.StatusOf(t, v.Guest)
		return ok && s.UID == v.UID
	}, "%s is not guarded", v.Domain)
}

// SignalShim sends SIGTERM to the shim, as kubelet does, and returns when.
func (v *VM) SignalShim(t T) time.Time {
	t.Helper()
	now := time.Now()
	v.signalled = now
	if err := v.Shim.Signal(unix.SIGTERM); err != nil {
		t.Fatalf("SIGTERM to the shim of %s: %v", v.Domain, err)
	}
	return now
}

// WaitBegun waits until the shutdown has begun and returns its deadline as
// status.json says it.
func (v *VM) WaitBegun(t T) (deadline string) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool { return v.Launcher.Status().Deadline != "" }, "the shutdown of %s does not begin", v.Domain)
	return v.Launcher.Status().Deadline
}

// WaitTerminated waits for the end of QEMU and fails where its SIGTERM was sent before
// a time, or more than slack after it. Where no core was free, what a plain thread was
// late comes on top, for each who has to be woken, see machineLate.
func (v *VM) WaitTerminated(t T, at time.Time, slack time.Duration) {
	t.Helper()
	v.WaitGone(t, time.Until(at)+waitTimeout)
	sent, ok := v.Sent(t, unix.SIGTERM)
	if !ok {
		t.Fatalf("nobody sent SIGTERM to the QEMU of %s", v.Domain)
	}
	machine := v.machineLate(at, sent)
	if late := sent.Sub(at); late < 0 || late > slack+machine {
		t.Fatalf("%s: SIGTERM %v after the deadline, want 0 to %v and %v that the machine was late", v.Domain, late, slack, machine)
	}
}

// machineLate is what the machine may have made an end late: at the deadline the
// agent's thread has to be woken, and where only libvirt can end QEMU another; at the
// beginning the shim, the agent that sees the trigger, and who acts on it.
func (v *VM) machineLate(due, end time.Time) time.Duration {
	late := 2 * v.node.Late(due, end)
	if !v.signalled.IsZero() {
		late += 3 * v.node.Late(v.signalled, v.signalled.Add(time.Second))
	}
	return late
}

// WaitKilled is WaitTerminated for a QEMU that a SIGKILL ends: it leaves no log,
// and its end is seen by a third thread that has to be woken.
func (v *VM) WaitKilled(t T, at time.Time, slack time.Duration) {
	t.Helper()
	gone := v.WaitGone(t, time.Until(at)+waitTimeout)
	machine := v.machineLate(at, gone) + v.node.Late(at, gone)
	if late := gone.Sub(at); late < 0 || late > slack+machine {
		t.Fatalf("%s: killed %v after it was due, want 0 to %v and %v that the machine was late", v.Domain, late, slack, machine)
	}
}

// WaitOutcome waits until the launcher directory says Stopped and has no
// trigger any more, and fails where the cause or the outcome is another.
func (v *VM) WaitOutcome(t T, cause, outcome string) {
	t.Helper()
	s := v.Launcher.WaitStopped(t, 2*waitTimeout)
	if s.Cause != cause || s.Outcome != outcome || s.UID != v.UID {
		t.Fatalf("status.json of %s: %+v; want cause %s, outcome %s", v.Domain, s, cause, outcome)
	}
	Eventually(t, waitTimeout, func() bool { return !v.Launcher.Has("shutdown") }, "the trigger of %s is still there", v.Domain)
}

// WaitStopped is WaitOutcome, and waits for the end of the VM's record too.
func (v *VM) WaitStopped(t T, cause, outcome string) {
	t.Helper()
	v.WaitOutcome(t, cause, outcome)
	Eventually(t, waitTimeout, func() bool { _, ok := v.Agent.StatusOf(t, v.Guest); return !ok }, "the record of %s is still there", v.Domain)
}

// WaitExit waits for the end of the shim and fails where its status is another.
func (v *VM) WaitExit(t T, want int) {
	t.Helper()
	if code, ok := v.Shim.Exited(waitTimeout); !ok || code != want {
		t.Fatalf("shim of %s: exit status %d (ended: %v), want %d\n%s", v.Domain, code, ok, want, v.Shim.Log())
	}
}

// WallTime parses a time of status.json.
func WallTime(t T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return at
}
