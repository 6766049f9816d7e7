package besidekubevirt

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

// Given a node with logind, and KubeVirt's VMs on it, one of whose guests ignores ACPI. When
// the node shuts down, then virt-handler asks both guests at once and gives the deaf one its
// grace period, and the node goes down when they are off, long before logind's time is over.
// Otherwise the guests would lose what they had not written yet.
func TestANodeGoesDownAfterKubeVirtsGuests(t *testing.T) {
	w := given(t)
	m := logind.Start(t, 2*time.Minute)
	w.onLogind(w.b, m)
	const grace = 8 * time.Second
	all := w.vms(w.b, plan{name: "reboot", behaviour: "polite", grace: 30}, plan{name: "reboot-deaf", behaviour: "deaf", grace: int(grace / time.Second)})
	at := m.Shutdown(t, "PowerOff")
	for _, v := range all {
		if after := v.pressed().Sub(at); after > 5*time.Second {
			t.Errorf("the guest of %s is asked %v after the announcement", v.name, after)
		}
	}
	w.step("both guests are asked")
	node.Eventually(t, soon, func() bool { _, _, down := m.Down(t); return down }, "the node goes down")
	_, down, _ := m.Down(t)
	w.step("the node went down %v after the announcement", down.Sub(at))
	if took := down.Sub(at); took < grace || took > grace+20*time.Second {
		t.Errorf("the node went down %v after the announcement; a guest had %v", took, grace)
	}
	for _, v := range all {
		node.Eventually(t, soon, func() bool { return v.get("{.status.phase}") == "Failed" }, "KubeVirt does not see the end of %s", v.name)
	}
}

// onLogind gives a node's agent a system bus with logind, until the test ends.
func (w *world) onLogind(n *cluster.Node, m *logind.Machine) {
	w.Helper()
	w.restore(func(ctx context.Context) error {
		if _, err := n.TryRun(ctx, nil, "umount /run/dbus"); err != nil {
			return err
		}
		return w.newAgents(ctx)
	})
	n.Run(w, "mkdir -p /run/dbus && mount --bind '"+filepath.Dir(m.Socket)+"' /run/dbus")
	if err := w.newAgents(w.Context()); err != nil {
		w.Fatal(err)
	}
	node.Eventually(w, soon, func() bool { return slices.Contains(m.Inhibitors(w), "vmgrace node-agent") }, "the agent inhibits a shutdown")
	w.step("the agent inhibits a shutdown")
}

// newAgents replaces the agents' pods: only new ones see what was mounted.
func (w *world) newAgents(ctx context.Context) error {
	if _, err := w.TryKubectl(ctx, "", "delete", "pods", "-n", ours, "-l", "app.kubernetes.io/name=node-agent", "--wait"); err != nil {
		return err
	}
	return w.ready(ctx, ours, "ds/node-agent")
}
