package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given a guest in its grace period. Then kubectl vmgrace status says how much of it is left and
// why, from a condition that kubelet leaves when it writes its own last word about the pod.
func TestStatusShowsTheTimeThatIsLeft(t *testing.T) {
	const grace = 25
	w := given(t)
	vmgrace := w.vmgrace()
	v := w.vm(plan{Spec: deaf(), grace: grace})
	w.Kubectl(t, "patch", "-n", namespace, v.launcherPod(), "--type=merge", "-p", `{"metadata":{"finalizers":["vmgrace.test/stays"]}}`)
	w.afterwards("patch", "-n", namespace, v.launcherPod(), "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)

	w.delete(v.launcherPod())
	s := v.begun("LauncherSignal", grace*time.Second)
	var shown struct {
		Items []struct {
			Phase, Cause     string
			Deadline         time.Time
			RemainingSeconds int64
		}
	}
	node.Eventually(t, 5*time.Second, func() bool {
		return json.Unmarshal([]byte(vmgrace("status", v.Name, "-o", "json")), &shown) == nil && len(shown.Items) == 1 && shown.Items[0].Phase == "ShuttingDown"
	}, "status does not show the shutdown: %+v", &shown)
	left := time.Until(s.deadline)
	is := shown.Items[0]
	if off := time.Duration(is.RemainingSeconds)*time.Second - left; is.Cause != "LauncherSignal" || !is.Deadline.Equal(s.deadline.Truncate(time.Second)) || off < -2*time.Second || off > 2*time.Second {
		t.Errorf("%+v, want cause LauncherSignal, deadline %v, %v left", is, s.deadline, left)
	}
	if text := vmgrace("status", v.Name); !regexp.MustCompile(v.Name + ` .* ShuttingDown +LauncherSignal +25s +\d+s `).MatchString(text) {
		t.Errorf("no phase, cause, grace period and time left: %s", text)
	}
	w.step("shown: %+v", is)

	v.destroyedAt(s.deadline)
	node.Eventually(t, soon, func() bool {
		p := w.get("pod", "virt-launcher-"+v.Name, "{.status.phase}")
		return p == "Succeeded" || p == "Failed"
	},
		"kubelet does not say that the pod has ended")
	const path = `{.status.conditions[?(@.type=="ShuttingDown")].status} {.status.conditions[?(@.type=="ShuttingDown")].reason}`
	if got := w.get("pod", "virt-launcher-"+v.Name, path); got != "True LauncherSignal" {
		t.Errorf("kubelet has left %q of the condition", got)
	}
	v.ended("LauncherSignal", "Forced", "ShutdownStarted", "ShutdownForced")
}

// vmgrace builds kubectl-vmgrace and returns a function that runs it for VMs of the tests'
// namespace.
func (w *world) vmgrace() func(args ...string) string {
	w.Helper()
	program := filepath.Join(w.TempDir(), "kubectl-vmgrace")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/kubectl-vmgrace").CombinedOutput(); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	return func(args ...string) string {
		w.Helper()
		out, err := exec.CommandContext(w.Context(), program, append(args, "-n", namespace, "--kubeconfig", w.Kubeconfig)...).CombinedOutput()
		if err != nil {
			w.Fatalf("kubectl vmgrace %v: %v: %s", args, err, out)
		}
		return string(out)
	}
}
