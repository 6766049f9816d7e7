package e2e

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestADeletedVMIOrPodShutsItsGuestDownAndLeavesNothing(t *testing.T) {
	for what, cause := range map[string]string{"VMI": either, "VMI with KubeVirt's finalizer": "VMIDeleted", "launcher pod": "LauncherSignal"} {
		t.Run(what, func(t *testing.T) {
			w := given(t)
			v := w.vm(plan{grace: 60, finalizer: cause == "VMIDeleted"})
			from := time.Now()
			if cause == "LauncherSignal" {
				w.delete(v.launcherPod())
			} else {
				w.delete("vmi/" + v.Name)
			}
			v.offByItself()
			if cause == "VMIDeleted" {
				v.release()
			}
			v.podGone(from.Add(90 * time.Second))
			v.ended(cause, "Graceful", "ShutdownStarted", "ShutdownCompleted")
		})
	}
}

func TestVMIAndPodDeletedAtOnceAreOneShutdownWithOneDeadline(t *testing.T) {
	w := given(t)
	v := w.vm(plan{Spec: node.Spec{Firmware: true}, grace: 6})
	from := time.Now()
	w.delete("vmi/"+v.Name, v.launcherPod())
	s := v.begun(either, 6*time.Second)
	v.destroyedAt(s.deadline)
	v.podGone(from.Add(36 * time.Second))
	v.ended(either, "Forced", "ShutdownStarted", "ShutdownForced")
}
