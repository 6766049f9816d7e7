package crash

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

// nodeShutdown is the path from the announcement of the node's shutdown to the VM's end.
func nodeShutdown() path {
	return path{
		name: "node-shutdown", spec: node.Spec{Firmware: true}, round: 8, outcomes: []string{"Forced"}, cause: "NodeShutdown", notice: time.Second,
		points: slices.Concat(call("keep-node-shutdown"), []string{"put-begun.rename", "put-begun.done"}, call("ask"), []string{"SIGTERM", "status-Stopped"}),
	}
}

func TestAnAgentKilledInANodesShutdownKeepsTheGracePeriod(t *testing.T) {
	n, m := node.New(t), newMatrix(t)
	m.walk(t, nodeShutdown(), func(t *testing.T, point string) *crash {
		t.Helper()
		machine := logind.Start(t, time.Minute)
		other := machine.Inhibit(t, "kubelet") // the agent's inhibitor ends with the agent
		t.Cleanup(func() { _ = other.Close() })
		return m.prepareNode(t, n, machine, point)
	}, (*crash).shutDownNode)
	m.complete(t)
}

func (m *matrix) prepareNode(t *testing.T, n *node.Node, machine *logind.Machine, point string) *crash {
	t.Helper()
	p := nodeShutdown()
	c := m.crash(t, n, p, n.Agent(t, "--shutdown-retry-interval=1s", "--dbus-socket="+machine.Socket), point)
	c.machine = machine
	c.arm(c.armed())
	c.agent.Start(t)
	spec := p.spec
	spec.Namespace, spec.Name = "vmgrace-crash", c.name
	c.VM = c.agent.VM(t, n.Boot(t, spec), "--grace-period="+crashGrace.String())
	waitGuarded(t, c.VM)
	node.Eventually(t, soon, func() bool { return c.agent.Metrics(t)["vmgrace_node_shutdown_delayed"] == 1 }, "shutdowns are delayed")
	return c
}

func (c *crash) shutDownNode() {
	if err := os.WriteFile(c.armed(), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.from = c.machine.Shutdown(c.t, "PowerOff")
	c.to = time.Now()
}
