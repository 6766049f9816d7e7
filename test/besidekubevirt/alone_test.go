package besidekubevirt

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given KubeVirt without vmgrace, and a guest that shuts down when it is asked. When the
// scheduler preempts its launcher, then the guest is asked at once, and the VM is lost: what
// the other tests show is vmgrace's doing. It is the first test of the package.
func TestAloneKubeVirtLosesAPoliteGuestThatIsPreempted(t *testing.T) {
	w := without(t)
	v := w.vms(w.a, plan{name: "alone", behaviour: "polite", grace: 30, cpu: w.share(40)})[0]
	if pod := w.Kubectl(t, "get", "pod", "-n", namespace, v.pod, "-o", "jsonpath={.spec.containers[0].lifecycle}{.spec.terminationGracePeriodSeconds}"); pod != "60" {
		t.Errorf("its launcher has %s", pod)
	}
	w.important(w.a)
	v.pressed()
	node.Eventually(t, soon, func() bool { return v.get("{.status.phase}") == "Failed" }, "the VM goes on")
	w.importantRuns()
	if m := v.migrations(); m != "" {
		t.Errorf("it has the migrations %s", m)
	}
}
