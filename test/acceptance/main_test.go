// Package acceptance runs the agent and the shim against a real libvirtd and real QEMU
// guests, and checks what a user of vmgrace cares about.
package acceptance

import (
	"os"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// shared is the node of all tests that do not harm its libvirtd.
var shared *node.Node

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(n *node.Node) int { shared = n; return m.Run() }))
}

// ms is the unit of the contract's bound at the deadline, 50 ms.
const ms = time.Millisecond

// soon bounds the wait for what has no promised time.
const soon = 20 * time.Second

// ofBothKinds makes a VM of the node's libvirt and a VM whose QEMU is in its launcher, and
// waits until the agent guards both.
func ofBothKinds(t *testing.T, a *node.Agent, s node.Spec, shimArgs ...string) []*node.VM {
	t.Helper()
	return []*node.VM{a.Guarded(t, s, shimArgs...), a.InLauncher(t, s, shimArgs...)}
}
