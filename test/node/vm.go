package node

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// VM is a guest with its launcher directory, its shim and the agent that must guard it.
type VM struct {
	*Guest
	Agent    *Agent
	Launcher *Launcher
	Shim     *Process // nil where the VM has no shim

	signalled time.Time // when SignalShim was called, zero before
}

// Guarded boots a guest with a shim and waits until the agent guards it. shimArgs come
// after the guest's --pid and may override it.
func (a *Agent) Guarded(t T, s Spec, shimArgs ...string) *VM {
	t.Helper()
	v := a.VM(t, a.node.Boot(t, s), shimArgs...)
	v.WaitGuarded(t)
	return v
}

// VM makes a launcher directory for a guest and starts its shim. It does not wait. shimArgs
// are the same as for Guarded.
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

// WaitGuarded waits until the agent has a record of the running VM with its UID.
func (v *VM) WaitGuarded(t T) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool {
		if v.Launcher.Status().Phase != "Running" { // the agent writes the record before this phase
			return false
		}
		s, ok := v.Agent.StatusOf(t, v.Guest)
		return ok && s.UID == v.UID
	}, "%s is not guarded", v.Domain)
}

// SignalShim sends SIGTERM to the shim, as kubelet does, and returns the time of that.
func (v *VM) SignalShim(t T) time.Time {
	t.Helper()
	now := time.Now()
	v.signalled = now
	if err := v.Shim.Signal(unix.SIGTERM); err != nil {
		t.Fatalf("SIGTERM to the shim of %s: %v", v.Domain, err)
	}
	return now
}

// WaitBegun waits until the shutdown has begun and returns the deadline in status.json.
func (v *VM) WaitBegun(t T) (deadline string) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool { return v.Launcher.Status().Deadline != "" }, "the shutdown of %s does not begin", v.Domain)
	return v.Launcher.Status().Deadline
}

// WaitTerminated waits for the end of QEMU. It fails the test where QEMU's SIGTERM was sent
// before the time at, or more than slack after it. Where no core was free, the limit grows
// by the lateness of a plain thread for each thread that has to wake: see machineLate.
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

// machineLate returns by how much the machine may have delayed the end of QEMU. At the
// deadline two threads have to wake: the agent's, and another where only libvirt can end
// QEMU. At the beginning three have to wake: the shim, the agent that sees the trigger, and
// the thread that acts on it.
func (v *VM) machineLate(due, end time.Time) time.Duration {
	late := 2 * v.node.Late(due, end)
	if !v.signalled.IsZero() {
		late += 3 * v.node.Late(v.signalled, v.signalled.Add(time.Second))
	}
	return late
}

// WaitKilled is WaitTerminated for a QEMU that SIGKILL ends. SIGKILL leaves no log, and a
// third thread has to wake to see the end.
func (v *VM) WaitKilled(t T, at time.Time, slack time.Duration) {
	t.Helper()
	gone := v.WaitGone(t, time.Until(at)+waitTimeout)
	machine := v.machineLate(at, gone) + v.node.Late(at, gone)
	if late := gone.Sub(at); late < 0 || late > slack+machine {
		t.Fatalf("%s: killed %v after it was due, want 0 to %v and %v that the machine was late", v.Domain, late, slack, machine)
	}
}

// WaitOutcome waits until status.json says Stopped and the trigger is gone. It fails the
// test where the cause or the outcome is another one.
func (v *VM) WaitOutcome(t T, cause, outcome string) {
	t.Helper()
	s := v.Launcher.WaitStopped(t, 2*waitTimeout)
	if s.Cause != cause || s.Outcome != outcome || s.UID != v.UID {
		t.Fatalf("status.json of %s: %+v; want cause %s, outcome %s", v.Domain, s, cause, outcome)
	}
	Eventually(t, waitTimeout, func() bool { return !v.Launcher.Has("shutdown") }, "the trigger of %s is still there", v.Domain)
}

// WaitStopped is WaitOutcome, and it also waits for the end of the VM's record.
func (v *VM) WaitStopped(t T, cause, outcome string) {
	t.Helper()
	v.WaitOutcome(t, cause, outcome)
	Eventually(t, waitTimeout, func() bool { _, ok := v.Agent.StatusOf(t, v.Guest); return !ok }, "the record of %s is still there", v.Domain)
}

// WaitExit waits for the end of the shim and fails the test where its exit status is not
// want.
func (v *VM) WaitExit(t T, want int) {
	t.Helper()
	if code, ok := v.Shim.Exited(waitTimeout); !ok || code != want {
		t.Fatalf("shim of %s: exit status %d (ended: %v), want %d\n%s", v.Domain, code, ok, want, v.Shim.Log())
	}
}

// WallTime parses a time in status.json.
func WallTime(t T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return at
}
