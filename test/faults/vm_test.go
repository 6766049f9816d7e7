package faults

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// late is how long after its deadline a SIGTERM may come here. A fault that
// delays it does so by seconds; test/acceptance holds the contract's 50 ms.
const late = time.Second

// soon is how long things may take that have no promised time.
const soon = 30 * time.Second

// vm is a guest with its launcher directory and its shim.
type vm struct {
	*node.Guest
	launcher *node.Launcher
	shim     *node.Process
}

// guarded boots a guest with a shim and waits until the agent guards it.
func guarded(t *testing.T, a *node.Agent, n *node.Node, s node.Spec, shimArgs ...string) vm {
	t.Helper()
	v := launch(t, a, n, s, shimArgs...)
	node.Eventually(t, soon, func() bool {
		s, ok := a.StatusOf(t, v.Guest)
		return ok && s.UID == v.UID && v.launcher.Status().Phase == "Running"
	}, "%s is not guarded", v.Domain)
	return v
}

// launch boots a guest with a shim that has registered it.
func launch(t *testing.T, a *node.Agent, n *node.Node, s node.Spec, shimArgs ...string) vm {
	t.Helper()
	g := n.Boot(t, s)
	l := a.Launcher(t, g)
	v := vm{g, l, l.Shim(t, append([]string{fmt.Sprintf("--pid=%d", g.PID)}, shimArgs...)...)}
	node.Eventually(t, soon, func() bool { return l.Has("vm.json") }, "the shim of %s does not register", g.Domain)
	return v
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

// stopped waits for the outcome and for all traces of the shutdown to be gone.
func (v vm) stopped(t *testing.T, a *node.Agent, cause, outcome string) {
	t.Helper()
	var s node.Status
	node.Eventually(t, 2*time.Minute, func() bool { s = v.launcher.Status(); return s.Phase == "Stopped" }, "%s is not Stopped", v.Domain)
	if s.Cause != cause || s.Outcome != outcome || s.UID != v.UID {
		t.Errorf("status.json of %s: %+v; want cause %s, outcome %s\n%s", v.Domain, s, cause, outcome, a.Log())
	}
	node.Eventually(t, soon, func() bool { return !v.launcher.Has("shutdown") }, "the trigger of %s is still there", v.Domain)
}

// removed takes the launcher directory away, as kubelet does, once the record
// is gone.
func (v vm) removed(t *testing.T, a *node.Agent) {
	t.Helper()
	node.Eventually(t, soon, func() bool { _, ok := a.StatusOf(t, v.Guest); return !ok }, "the record of %s is still there", v.Domain)
	if err := os.RemoveAll(v.launcher.Dir); err != nil {
		t.Fatal(err)
	}
}

// terminated asserts when QEMU got its SIGTERM: not before from+after, and at
// most slack later.
func (v vm) terminated(t *testing.T, from time.Time, after, slack time.Duration) {
	t.Helper()
	v.WaitGone(t, time.Until(from.Add(after))+soon)
	s, ok := v.Terminated()
	if !ok {
		t.Fatalf("QEMU of %s did not log a signal:\n%s", v.Domain, v.QEMULog())
	}
	if late := s.At.Sub(from.Add(after)); late < 0 || late > slack {
		t.Errorf("%s: SIGTERM %v after the deadline (by %s), want 0 to %v", v.Domain, late, s.Process, slack)
	}
}

// usage is what a process holds.
type usage struct{ fds, threads, rss int }

func use(t *testing.T, p *node.Agent) usage {
	t.Helper()
	proc := "/proc/" + strconv.Itoa(p.PID())
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir(proc + "/task")
	if err != nil {
		t.Fatal(err)
	}
	statm, err := os.ReadFile(proc + "/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	if err != nil {
		t.Fatal(err)
	}
	return usage{len(fds), len(threads), pages * os.Getpagesize()}
}
