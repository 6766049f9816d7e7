// Package acceptance runs both binaries against a real libvirtd and real QEMU
// guests, and asserts what a user of vmgrace cares about.
package acceptance

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// shared is the node of all tests that do not harm its libvirtd.
var shared *node.Node

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(n *node.Node) int { shared = n; return m.Run() }))
}

// ms gives the contract's 50 ms at the deadline.
const ms = time.Millisecond

// soon is how long things may take that have no promised time.
const soon = 20 * time.Second

// vm is a guest with its launcher directory and its shim.
type vm struct {
	*node.Guest
	launcher *node.Launcher
	shim     *node.Process
}

// guarded boots a guest with a shim and waits until the agent guards it.
func guarded(t *testing.T, a *node.Agent, n *node.Node, s node.Spec, shimArgs ...string) vm {
	t.Helper()
	g := n.Boot(t, s)
	l := a.Launcher(t, g)
	args := append([]string{fmt.Sprintf("--pid=%d", g.PID)}, shimArgs...)
	v := vm{g, l, l.Shim(t, args...)}
	v.waitGuarded(t, a)
	return v
}

func (v vm) waitGuarded(t *testing.T, a *node.Agent) {
	t.Helper()
	node.Eventually(t, soon, func() bool {
		s, ok := a.StatusOf(t, v.Guest)
		return ok && s.UID == v.UID && v.launcher.Status().Phase == "Running"
	}, "%s is not guarded", v.Domain)
}

// signal sends SIGTERM to the shim and returns when.
func (v vm) signal(t *testing.T) time.Time {
	t.Helper()
	now := time.Now()
	if err := v.shim.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return now
}

// begun waits until the shutdown has begun and returns its deadline.
func (v vm) begun(t *testing.T) string {
	t.Helper()
	node.Eventually(t, soon, func() bool { return v.launcher.Status().Deadline != "" }, "the shutdown of %s does not begin", v.Domain)
	return v.launcher.Status().Deadline
}

func (v vm) exits(t *testing.T, want int) {
	t.Helper()
	if code, ok := v.shim.Exited(soon); !ok || code != want {
		t.Fatalf("shim of %s: exit status %d (ended: %v), want %d\n%s", v.Domain, code, ok, want, v.shim.Log())
	}
}

// stopped waits for the outcome and for all traces to be gone.
func (v vm) stopped(t *testing.T, a *node.Agent, cause, outcome string) {
	t.Helper()
	s := v.launcher.WaitStopped(t, 2*time.Minute)
	if s.Cause != cause || s.Outcome != outcome || s.UID != v.UID {
		t.Errorf("status.json of %s: %+v; want cause %s, outcome %s\n%s", v.Domain, s, cause, outcome, a.Log())
	}
	node.Eventually(t, soon, func() bool { return !v.launcher.Has("shutdown") }, "the trigger of %s is still there", v.Domain)
	node.Eventually(t, soon, func() bool { _, ok := a.StatusOf(t, v.Guest); return !ok }, "the record of %s is still there", v.Domain)
}

// terminated asserts when QEMU got its SIGTERM: not before from+after, and at
// most slack later.
func (v vm) terminated(t *testing.T, from time.Time, after, slack time.Duration) {
	t.Helper()
	v.WaitGone(t, after+soon)
	s, ok := v.Terminated()
	if !ok {
		t.Fatalf("QEMU of %s did not log a signal:\n%s", v.Domain, v.QEMULog())
	}
	if late := s.At.Sub(from.Add(after)); late < 0 || late > slack {
		t.Errorf("%s: SIGTERM %v after the deadline (by %s), want 0 to %v", v.Domain, late, s.Process, slack)
	}
}

func wallTime(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
