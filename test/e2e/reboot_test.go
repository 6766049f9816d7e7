package e2e

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

// graceful configures kubelet's graceful node shutdown: the launchers have 25 s, then the
// agent has 5 s.
const graceful = "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 5s\n"

// onLogind gives a node's kubelet and agent a system bus with logind. undo removes the bus.
func (w *world) onLogind(n *cluster.Node, m *logind.Machine) (undo func()) {
	w.Helper()
	done := false
	back := func(ctx context.Context) error {
		if done {
			return nil
		}
		done = true
		if err := n.SetKubelet(ctx, ""); err != nil {
			return err
		}
		// The next boot would not know of the shutdown. An agent of this one ends what comes to the node.
		if _, err := n.TryRun(ctx, nil, "umount /run/dbus && rm -f /var/lib/vmgrace/node-shutdown"); err != nil {
			return err
		}
		return w.newAgents(ctx)
	}
	w.restore(back)
	n.Run(w, "mkdir -p /run/dbus && mount --bind '"+filepath.Dir(m.Socket)+"' /run/dbus")
	if err := n.SetKubelet(w.Context(), graceful); err != nil {
		w.Fatalf("NOT RUN on this cluster: needs a kubelet that may be restarted: %v", err)
	}
	if err := w.newAgents(w.Context()); err != nil {
		w.Fatal(err)
	}
	var who []string
	node.Eventually(w, soon, func() bool {
		who = m.Inhibitors(w)
		return slices.Contains(who, "kubelet") && slices.Contains(who, "vmgrace node-agent")
	}, "both inhibit a shutdown")
	w.step("inhibited by %q", who)
	return func() {
		if err := back(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
}

// newAgents replaces the agents' pods, because only new ones see what was mounted.
func (w *world) newAgents(ctx context.Context) error {
	if err := w.kubectl(ctx, "delete", "pods", "-n", agents, "-l", "app.kubernetes.io/name=node-agent", "--wait"); err != nil {
		return err
	}
	return w.agentsReady(ctx)
}

// Given a kubelet with graceful node shutdown. It ends the launchers at the moment at which
// the agent hears of the shutdown, and the agent once they have ended. When the node shuts
// down, then each VM has one shutdown with its whole grace period, and the node powers off
// after the last deadline. Otherwise guests would lose what they had not written yet.
func TestKubeletsGracefulNodeShutdownEndsEachVMOnce(t *testing.T) {
	w := given(t)
	const cause = "NodeShutdown|LauncherSignal"
	m := logind.Start(t, 2*time.Minute)
	undo := w.onLogind(w.b, m)
	all := w.vms(plan{on: w.b, grace: 20}, plan{Spec: deaf(), on: w.b, grace: 6})
	m.Shutdown(t, "PowerOff")
	s := all[1].begun(cause, 6*time.Second)
	all[0].offByItself()
	all[1].destroyedAt(s.deadline)
	node.Eventually(t, soon, func() bool { _, _, down := m.Down(t); return down }, "the node goes down")
	verb, at, _ := m.Down(t)
	w.step("%s ran %v after the last deadline", verb, at.Sub(s.deadline))
	if at.Before(s.deadline) || verb != "poweroff" {
		t.Errorf("%s ran %v before the last deadline", verb, s.deadline.Sub(at))
	}
	undo()
	all[0].ended(cause, "Graceful", "ShutdownStarted", "ShutdownCompleted")
	all[1].ended(cause, "Forced", "ShutdownStarted", "ShutdownForced")
}
