package crash

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// allowance is how long these shutdowns are held: nobody moves their VMs.
const allowance = 8 * time.Second

// held is the path from the signal of a launcher that is preempted to the end of its VM.
func held() path {
	return path{
		name: "held", spec: node.Spec{Firmware: true}, outcomes: []string{"Forced"}, cause: "LauncherSignal",
		points: slices.Concat(
			[]string{"put-held.create", "put-held.rename", "put-held.done"}, call("status-Held", "report-ShutdownHeld"),
			[]string{"put-begun.create", "put-begun.done", "report-ShutdownStarted", "flush-events"}),
	}
}

// The latest moment of a hold is the same after a crash, and then there is one
// shutdown with the whole grace period.
func TestAnAgentKilledAtAnyStepOfAHoldKeepsItsLatestMoment(t *testing.T) {
	n, m, api := node.New(t), newMatrix(t), clusterOfVMs(t)
	p := held()
	crashes := make([]*crash, len(p.points))
	for i, point := range p.points {
		crashes[i] = m.prepareDeleted(t, n, api, p, point)
	}
	for i, c := range crashes {
		c.preempt(api)
		all(crashes[:i+1], (*crash).over) // the next agent is there before the latest moment
	}
	node.Eventually(t, time.Minute, func() bool { return all(crashes, (*crash).over) }, "not all of %v end", p.points)
	for _, c := range crashes {
		// An agent that is dead then begins when another one has taken its place.
		c.checkHeld(soon)
		c.checkEvents(t, api, "ShutdownForced 1", "ShutdownHeld 1", "ShutdownStarted 1")
	}
}

// A hold needs nothing of libvirt: whenever libvirtd is killed, the latest moment is
// what it was, and the grace period begins then.
func TestLibvirtdKilledAtAnyStepOfAHoldMovesNothing(t *testing.T) {
	m, api := newMatrix(t), clusterOfVMs(t)
	steps := []string{"put-held.create", "put-held.done", "status-Held.done", "put-begun.create", "put-begun.done", "report-ShutdownStarted", "ask"}
	crashes := make([]*crash, len(steps))
	for i, step := range steps {
		crashes[i] = m.prepareDeleted(t, node.New(t), api, held(), "libvirtd at "+step) // no point of the agent's
	}
	for _, c := range crashes {
		c.preempt(api)
	}
	node.Eventually(t, 2*time.Minute, func() bool {
		for i, c := range crashes {
			if !c.killed && c.reached(steps[i]) {
				c.node.RestartLibvirtd(t)
				c.killed, c.ready = true, time.Now()
			}
		}
		return all(crashes, (*crash).over)
	}, "not all of %v end", steps)
	for _, c := range crashes {
		c.checkHeld(time.Second)
		c.checkDestroyed()
		c.checkEvents(t, api, "ShutdownForced 1", "ShutdownHeld 1", "ShutdownStarted 1")
	}
}

// reached: the agent has passed the point.
func (c *crash) reached(point string) bool {
	text, err := os.ReadFile(c.log) // not there before the first one
	return err == nil && slices.Contains(strings.Fields(string(text)), point)
}

// preempt does what the scheduler, the controller and kubelet do.
func (c *crash) preempt(api *cluster.API) {
	c.t.Helper()
	pod := "launcher-" + c.name
	api.Kubectl(c.t, "annotate", "pod", pod, "vmgrace.io/hold-for=PreemptionByScheduler", "vmgrace.io/shutdown-reserve-seconds=40",
		fmt.Sprintf("vmgrace.io/migration-allowance-seconds=%d", int(allowance/time.Second)))
	api.Kubectl(c.t, "patch", "pod", pod, "--subresource=status", "-p",
		`{"status":{"phase":"Running","conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler"}]}}`)
	api.Kubectl(c.t, "patch", "vmi", c.name, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status":{"phase":"Running","nodeName":%[1]q,"evacuationNodeName":%[1]q}}`, c.name))
	if err := os.WriteFile(c.armed(), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	api.Kubectl(c.t, "delete", "pod", pod, "--wait=false")
	c.from = c.SignalShim(c.t)
	c.to = time.Now()
}

// checkHeld: one latest moment, and within so long of it one grace period.
func (c *crash) checkHeld(within time.Duration) {
	c.t.Helper()
	if s := c.Launcher.Status(); s.Outcome != "Forced" || s.Cause != "LauncherSignal" || s.UID != c.UID {
		c.t.Errorf("%s: status.json says %+v", c.point, s)
	}
	if len(c.deadlines) != 1 {
		c.t.Errorf("%s: deadlines %v on disk, want one", c.point, c.deadlines)
		return
	}
	if len(c.holds) == 0 {
		c.t.Errorf("%s: no hold was on disk", c.point)
		return
	}
	var until, deadline grace.Mono
	for h := range c.holds {
		if until != 0 && h.Until != until || h.Until != h.Start.Add(allowance) {
			c.t.Errorf("%s: the latest moment is not one: %v", c.point, c.holds)
		}
		until = h.Until
	}
	for d := range c.deadlines {
		deadline = d
	}
	if late := deadline.Sub(until) - crashGrace; late < 0 || late > within {
		c.t.Errorf("%s: the grace period began %v after the latest moment", c.point, late)
	}
}
