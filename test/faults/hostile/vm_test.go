package hostile

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

const ms = time.Millisecond

// soon is how long things may take that have no promised time.
const soon = 30 * time.Second

// vm is a guest with its launcher directory and its shim.
type vm struct {
	*node.Guest
	launcher *node.Launcher
	shim     *node.Process
}

// guarded starts a guest with a shim and waits until the agent guards it.
func guarded(t *testing.T, a *node.Agent, n *node.Node, grace int) vm {
	t.Helper()
	g := n.Boot(t, node.Spec{Firmware: true})
	l := a.Launcher(t, g)
	v := vm{g, l, l.Shim(t, fmt.Sprintf("--pid=%d", g.PID), fmt.Sprintf("--grace-period=%d", grace))}
	node.Eventually(t, soon, func() bool {
		s, ok := a.StatusOf(t, g)
		return ok && s.UID == g.UID && l.Status().Phase == "Running"
	}, "%s is not guarded", g.Domain)
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

// stopped waits for the outcome.
func (v vm) stopped(t *testing.T, cause, outcome string) {
	t.Helper()
	if s := v.launcher.WaitStopped(t, soon); s.Cause != cause || s.Outcome != outcome || s.UID != v.UID {
		t.Errorf("status.json of %s: %+v; want cause %s, outcome %s", v.Domain, s, cause, outcome)
	}
}

// passes waits until a time.
func passes(t *testing.T, at time.Time) {
	t.Helper()
	node.Eventually(t, time.Until(at)+soon, func() bool { return time.Now().After(at) }, "%v", at)
}

// resident is the memory of a process in bytes: field 2 of proc(5)'s statm.
func resident(t *testing.T, p *node.Agent) int {
	t.Helper()
	statm, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
