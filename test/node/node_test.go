package node_test

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

var shared *node.Node

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(n *node.Node) int {
		shared = n
		return m.Run()
	}))
}

func TestALibvirtdThatCrashesIsStartedAgain(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("node", func(t *testing.T) {
		n := node.New(t)
		n.RestartAfterCrash()
		g := n.Boot(t, node.Spec{Firmware: true})
		crashed := n.Libvirtd()
		kit.Must(t, crashed.Signal(unix.SIGSEGV))
		again := func() bool {
			state, err := n.TryVirsh(t.Context(), "domstate", g.Domain)
			return err == nil && state == "running"
		}
		node.Eventually(t, time.Minute, again, "libvirtd is there again and has the guest")
		if n.Libvirtd() == crashed {
			t.Error("it did not crash")
		}
	})
}

func TestNothingOutlivesANode(t *testing.T) {
	n, err := node.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var g *node.Guest
	t.Run("guest", func(t *testing.T) {
		g = n.Boot(t, node.Spec{Firmware: true})
		n.Close()
		g.WaitGone(t, 0)
	})
	if n.Libvirtd().Running() {
		t.Error("libvirtd is left over")
	}
	if _, err := os.Stat(n.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is left over: %v", n.Dir, err)
	}
}
