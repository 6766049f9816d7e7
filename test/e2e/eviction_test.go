package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// slow is a guest that takes 7 s to shut down.
func slow() node.Spec { return node.Spec{Behaviour: "slow=7"} }

// evicted asserts that the guest had the 7 s that its shutdown takes.
func (v *vm) evicted(from time.Time) {
	v.w.Helper()
	v.offByItself()
	if took := time.Since(from); took < 7*time.Second {
		v.w.Errorf("%s was off after %v; it takes 7 s", v.Domain, took)
	}
	v.podGone(from.Add(time.Duration(v.grace+30) * time.Second))
	v.ended("LauncherSignal", "Graceful", "ShutdownStarted", "ShutdownCompleted")
}

func TestADrainedNodesGuestsShutDownGracefully(t *testing.T) {
	w := given(t)
	v := w.vm(plan{Spec: slow(), grace: 30, on: w.b})
	stays := w.vm(plan{Spec: deaf(), grace: 5})
	w.afterwards("uncordon", w.b.Name)
	from := time.Now()
	w.Kubectl(t, "drain", w.b.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
	w.step("kubectl drain %s", w.b.Name)
	if !v.Gone(t) {
		t.Error("the node is drained, and the VM is still there")
	}
	v.evicted(from)
	w.untouched(stays)
}

func TestANoExecuteTaintShutsGuestsDownGracefully(t *testing.T) {
	w := given(t)
	v := w.vm(plan{Spec: slow(), grace: 30})
	const taint = "vmgrace.dev/e2e"
	w.afterwards("taint", "node", w.a.Name, taint+"-")
	from := time.Now()
	w.Kubectl(t, "taint", "node", w.a.Name, taint+"=1:NoExecute")
	v.evicted(from)
	// Then the taint does not evict the agent's own pod.
	w.waitAgents()
}

func TestAPreemptedLaunchersGuestShutsDownGracefully(t *testing.T) {
	w := given(t)
	cpu := w.moreThanHalf()
	v := w.vm(plan{Spec: slow(), grace: 30, cpu: cpu})
	from := time.Now()
	w.important(w.a, cpu)
	v.evicted(from)
	w.importantRuns()
	if got := w.Kubectl(t, "get", "events", "-n", namespace, "--field-selector", "reason=Preempted,involvedObject.uid="+v.pod, "-o", "name"); got == "" {
		t.Error("the launcher pod was not preempted")
	}
}

// moreThanHalf returns a CPU request of which only one fits on the first node.
func (w *world) moreThanHalf() string {
	w.Helper()
	text := w.Kubectl(w, "get", "node", w.a.Name, "-o", "jsonpath={.status.allocatable.cpu}")
	number, milli := strings.CutSuffix(text, "m")
	n, err := strconv.Atoi(number)
	if err != nil {
		w.Fatalf("allocatable CPU of %s: %v", w.a.Name, err)
	}
	if !milli {
		n *= 1000
	}
	return fmt.Sprintf("%dm", n*6/10)
}
