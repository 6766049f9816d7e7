package crash

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const ms = time.Millisecond

// soon is how long things may take that have no promised time.
const soon = 30 * time.Second

// vm is a guest with its launcher directory and its shim.
type vm struct {
	*node.Guest
	launcher *node.Launcher
	shim     *node.Process
}

// launch gives a guest its launcher directory and its shim.
func launch(t node.T, a *node.Agent, g *node.Guest, period time.Duration) vm {
	t.Helper()
	l := a.Launcher(t, g)
	return vm{g, l, l.Shim(t, fmt.Sprintf("--pid=%d", g.PID), fmt.Sprintf("--grace-period=%d", period/time.Second))}
}

// isGuarded: the record knows the VM and its shim.
func (v vm) isGuarded(t *testing.T, a *node.Agent) bool {
	t.Helper()
	r, there := recorded(t, a)[v.Domain]
	return there && r.UID == v.UID && r.Launcher.PID != 0 && v.launcher.Status().Phase == "Running"
}

func (v vm) waitGuarded(t *testing.T, a *node.Agent) {
	t.Helper()
	node.Eventually(t, soon, func() bool { return v.isGuarded(t, a) }, "%s is not guarded", v.Domain)
}

func (v vm) send(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := v.shim.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func passes(t *testing.T, at time.Time) {
	t.Helper()
	node.Eventually(t, time.Until(at)+soon, func() bool { return time.Now().After(at) }, "%v", at)
}
