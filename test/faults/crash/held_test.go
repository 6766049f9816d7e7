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

// allowance is how long these shutdowns are held: the whole migration allowance, because
// nobody migrates their VMs.
const allowance = 8 * time.Second

// held is the path of a preempted launcher, from its signal to the end of its VM.
func held() path {
	return path{
		name: "held", spec: node.Spec{Firmware: true}, outcomes: []string{"Forced"}, cause: "LauncherSignal",
		points: slices.Concat(
			[]string{"put-held.create", "put-held.rename", "put-held.done"}, call("status-Held", "report-ShutdownHeld"),
			[]string{"put-begun.create", "put-begun.done", "report-ShutdownStarted", "flush-events"}),
	}
}

// Given shutdowns that are held because their pods are preempted. When the agent is killed
// at any step, then the latest moment of the hold does not move, and one shutdown with the
// whole grace period follows.
func TestAnAgentKilledAtAnyStepOfAHoldKeepsItsLatestMoment(t *testing.T) {
	n, m, api := node.New(t), newMatrix(t), clusterOfVMs(t)
	p := held()
	crashes := make([]*crash, len(p.points))
	for i, point := range p.points {
		crashes[i] = m.prepareDeleted(t, n, api, p, point)
	}
	for i, c := range crashes {
		c.preempt(api)
		all(crashes[:i+1], (*crash).over) // the next agent starts before the latest moment
	}
	node.Eventually(t, time.Minute, func() bool { return all(crashes, (*crash).over) }, "not all of %v end", p.points)
	for _, c := range crashes {
		// If the agent is dead at the latest moment, the grace period begins when the next
		// one has started.
		c.checkHeld(soon)
		c.checkEvents(t, api, "ShutdownForced 1", "ShutdownHeld 1", "ShutdownStarted 1")
	}
}

// Given held shutdowns, which need nothing of libvirt. When libvirtd is killed at any step,
// then the latest moment does not move, and the grace period begins at that moment.
func TestLibvirtdKilledAtAnyStepOfAHoldMovesNothing(t *testing.T) {
	m, api := newMatrix(t), clusterOfVMs(t)
	steps := []string{"put-held.create", "put-held.done", "status-Held.done", "put-begun.create", "put-begun.done", "report-ShutdownStarted", "ask"}
	crashes := make([]*crash, len(steps))
	for i, step := range steps {
		crashes[i] = m.prepareDeleted(t, node.New(t), api, held(), "libvirtd at "+step) // not a point of the agent
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

// reached reports whether the agent has passed the point.
func (c *crash) reached(point string) bool {
	text, err := os.ReadFile(c.log) // the file does not exist before the first point
	return err == nil && slices.Contains(strings.Fields(string(text)), point)
}

// preempt does what the scheduler, the controller and kubelet do at a preemption.
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

// checkHeld checks that the hold had one latest moment, and that one grace period began at
// most within after it.
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
