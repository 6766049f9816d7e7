package kubernetes

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/launcherpod/status"
	"github.com/vmgrace/vmgrace/test/node"
)

func TestADeletedVMIEndsItsGuestGracefully(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{}, "terminationGracePeriodSeconds: 60")
	w.api.Kubectl(t, "delete", "vmi", v.Name)
	v.WaitGone(t, soon)
	v.stopped("VMIDeleted", "Graceful", "ShutdownStarted", "ShutdownCompleted")
}

func TestADeletedVMIOfADeafGuestIsDestroyedAtItsDeadline(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 3")
	from := time.Now()
	w.api.Kubectl(t, "delete", "vmi", v.Name)
	v.WaitTerminated(t, from.Add(3*time.Second), 2*time.Second) // kubectl and the watch need time
	v.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
}

func TestAVMIWithAFinalizerIsDeletedWhenItSaysSo(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 2")
	w.api.Kubectl(t, "patch", "vmi", v.Name, "--type=merge", "-p", `{"metadata":{"finalizers":["foregroundDeleteVirtualMachine"]}}`)
	w.api.Kubectl(t, "delete", "vmi", v.Name, "--wait=false")
	v.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
	w.api.Kubectl(t, "patch", "vmi", v.Name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
}

func TestAPodKilledEarlierMovesTheDeadline(t *testing.T) {
	w := given(t, api)
	const spec = "terminationGracePeriodSeconds: 60"
	vms := []vm{w.guarded(node.Spec{Firmware: true}, spec), w.inPod(node.Spec{Firmware: true}, spec)}
	var from []time.Time
	for _, v := range vms {
		from = append(from, time.Now())
		w.api.Kubectl(t, "delete", "pod", "launcher-"+v.Name, "--grace-period=5", "--wait=false")
		v.SignalShim(t)
	}
	for i, v := range vms {
		v.WaitTerminated(t, from[i].Add(3*time.Second), time.Second)
		v.stopped("LauncherSignal", "Forced", "ShutdownStarted", "GraceShortened", "ShutdownForced")
		v.showed("LauncherSignal", from[i].Add(3*time.Second))
	}
}

// showed asserts what the agent has shown of a shutdown on the launcher pod: its cause, and the
// last deadline.
func (v vm) showed(cause string, deadline time.Time) {
	v.w.Helper()
	shown := v.w.api.Kubectl(v.w, "get", "pod", "launcher-"+v.Name, "-o", `jsonpath={.status.conditions[?(@.type=="ShuttingDown")].reason} {.status.conditions[?(@.type=="ShuttingDown")].message}`)
	reason, message, _ := strings.Cut(shown, " ")
	s, ok := status.Parse(reason, message)
	if !ok || s.Cause != cause || s.Phase != status.ShuttingDown || s.Deadline.Sub(deadline).Abs() > 3*time.Second {
		v.w.Errorf("the launcher pod shows %q, want cause %s and a deadline about %v", shown, cause, deadline.UTC())
	}
}

// Given a deleted VMI whose launcher pod has ended. When kubelet removes the pod with a
// grace period of 0, as it does if the containers have ended or never ran, then the guest
// keeps its whole grace period. The finalizer keeps this state, which otherwise lasts only
// a moment.
func TestALauncherPodThatHasEndedMovesNoDeadline(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 6")
	pod := "launcher-" + v.Name
	finalizers := func(list string) {
		w.api.Kubectl(t, "patch", "pod", pod, "--type=merge", "-p", `{"metadata":{"finalizers":`+list+`}}`)
	}
	finalizers(`["vmgrace.io/test"]`)
	w.api.Kubectl(t, "delete", "vmi", v.Name)
	deadline := node.WallTime(t, v.WaitBegun(t))
	// When the pod is deleted, ends, and is removed as kubelet does it,
	w.api.Kubectl(t, "delete", "pod", pod, "--wait=false")
	w.api.Kubectl(t, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Failed"}}`)
	w.api.Kubectl(t, "delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
	// then the guest has its whole grace period.
	v.WaitTerminated(t, deadline, 50*ms)
	if grace := w.get("pod", pod, "{.metadata.deletionGracePeriodSeconds}"); grace != "0" {
		t.Errorf("the pod's grace period is %q", grace)
	}
	v.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
	finalizers("null")
}

func TestAnEditedGracePeriodCountsUntilTheShutdownStarts(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 30")
	v.waitGrace(30)
	edit := func(seconds string) {
		w.api.Kubectl(t, "patch", "vmi", v.Name, "--type=merge", "-p", `{"spec":{"terminationGracePeriodSeconds":`+seconds+`}}`)
	}
	edit("3")
	v.waitGrace(3)
	from := v.SignalShim(t)
	v.WaitBegun(t)
	edit("90")
	v.WaitTerminated(t, from.Add(3*time.Second), 50*ms)
	v.stopped("LauncherSignal", "Forced", "ShutdownStarted", "ShutdownForced")
}

func TestGraceZeroAndInvalidGrace(t *testing.T) {
	w := given(t, api)
	zero := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 0")
	invalid := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: -7")
	invalid.waitGrace(30)
	invalid.told("InvalidGracePeriod")
	w.api.Kubectl(t, "delete", "vmi", zero.Name)
	zero.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
	if n := w.agent.Metrics(t)[`vmgrace_shutdown_requests_total{mode="acpi",result="ok"}`]; n != 0 {
		t.Errorf("a guest without grace was asked %v times", n)
	}
	invalid.untouched()
}

func TestAVMIThatMovesAwayIsForgottenAndItsVMLeftAlone(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 2")
	w.api.Kubectl(t, "label", "--overwrite", "vmi", v.Name, "kubevirt.io/nodeName=node-b")
	node.Eventually(t, soon, func() bool { _, ok := v.record(); return !ok }, "the record is still there")
	w.api.Kubectl(t, "delete", "vmi", v.Name)
	node.Never(t, 4*time.Second, v.Gone, "the VM of a VMI that moved away was shut down")
	v.told()
}

func TestAVMIOfTheSameNameIsNotTheOldOne(t *testing.T) {
	w := given(t, api)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 2")
	// Given a VMI that is deleted and created again while no agent runs.
	w.agent.Kill()
	w.api.Kubectl(t, "delete", "vmi", v.Name)
	w.vmi(v.Name, "terminationGracePeriodSeconds: 600")
	w.agent.Start(t)
	v.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
}
