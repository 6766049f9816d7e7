package kubernetes

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

const priorityClasses = `
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: low}, value: 10}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}
`

// Given guests of two priorities. When the node shuts down, then the agent asks the higher
// priority after the lower one, if the shutdown is delayed long enough. Each priority needs
// its grace period and the destroy timeout: together 40 s here.
func TestANodesShutdownAsksLowerPrioritiesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		delay   time.Duration
		inOrder bool
	}{"one after the other": {time.Minute, true}, "all at once": {30 * time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			// Given guests of two priorities.
			m := logind.Start(t, c.delay)
			w := given(t, api, "--dbus-socket="+m.Socket, "--destroy-timeout=5s")
			w.api.KubectlApply(w, priorityClasses)
			low := w.guardedBy(launcher{priorityClass: "low"}, node.Spec{Behaviour: "slow=3"}, "terminationGracePeriodSeconds: 15")
			high := w.guardedBy(launcher{priorityClass: "high"}, node.Spec{}, "terminationGracePeriodSeconds: 15")
			node.Eventually(t, soon, func() bool { return w.agent.Metrics(t)["vmgrace_node_shutdown_delayed"] == 1 }, "shutdowns are delayed")
			// When the machine shuts down,
			from := m.Shutdown(t, "PowerOff")
			// then the lower priority is asked at once, and the higher one after its end,
			// if the delay is long enough.
			if took := low.asked().Sub(from); took > 2*time.Second {
				t.Errorf("the lower priority is asked after %v", took)
			}
			between := high.asked().Sub(low.asked())
			if c.inOrder != (between >= 3*time.Second) {
				t.Errorf("the higher priority is asked %v after the lower one", between)
			}
			low.WaitOutcome(t, "NodeShutdown", "Graceful")
			high.WaitOutcome(t, "NodeShutdown", "Graceful")
			node.Eventually(t, soon, func() bool { _, _, down := m.Down(t); return down }, "the machine does not go down")
		})
	}
}
