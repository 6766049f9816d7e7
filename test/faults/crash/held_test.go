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
	n, m, api := node.New(t), newMatrix(t), cluster.NewAPI(t)
	api.Kubectl(t, "apply", "-k", "../../../deploy/crds")
	api.Kubectl(t, "wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "--timeout=20s")
	p := held()
	crashes := make([]*crash, len(p.points))
	for i, point := range p.points {
		crashes[i] = m.prepareDeleted(t, n, api, p, point)
	}
	for _, c := range crashes {
		c.preempt(api)
	}
	node.Eventually(t, time.Minute, func() bool { return all(crashes, (*crash).over) }, "not all of %v end", p.points)
	for _, c := range crashes {
		c.checkHeld()
		told := api.Kubectl(t, "get", "events", "--field-selector", "involvedObject.uid="+c.UID, "-o", `jsonpath={range .items[*]}{.reason} {.count};{end}`)
		events := strings.Split(strings.TrimSuffix(told, ";"), ";")
		if slices.Sort(events); !slices.Equal(events, []string{"ShutdownForced 1", "ShutdownHeld 1", "ShutdownStarted 1"}) {
			t.Errorf("killed at %s: the VMI has Events %q", c.point, events)
		}
	}
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

func (c *crash) checkHeld() {
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
	// An agent that is dead then begins when another one has taken its place.
	if late := deadline.Sub(until) - crashGrace; late < 0 || late > soon {
		c.t.Errorf("%s: the grace period began %v after the latest moment", c.point, late)
	}
}
