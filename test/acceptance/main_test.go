// Package acceptance runs both binaries against a real libvirtd and real QEMU
// guests, and asserts what a user of vmgrace cares about.
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

// ms gives the contract's 50 ms at the deadline.
const ms = time.Millisecond

// soon is how long things may take that have no promised time.
const soon = 20 * time.Second

// ofBothKinds makes a VM of the node's libvirt and one whose QEMU is in its
// launcher, which one agent guards.
func ofBothKinds(t *testing.T, a *node.Agent, s node.Spec, shimArgs ...string) []*node.VM {
	t.Helper()
	return []*node.VM{a.Guarded(t, s, shimArgs...), a.InLauncher(t, s, shimArgs...)}
}
