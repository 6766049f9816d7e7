package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

func TestADeletedVMIShutsItsGuestDownAndLeavesNothing(t *testing.T) {
	w := given(t)
	v := w.vm(plan{grace: 60})
	from := time.Now()
	w.delete("vmi/" + v.Name)
	v.offByItself()
	v.podGone(from.Add(90 * time.Second))
	v.ended(either, "Graceful", "ShutdownStarted", "ShutdownCompleted")
}

func TestADeletedVMIWithKubeVirtsFinalizerLeavesNothing(t *testing.T) {
	w := given(t)
	v := w.vm(plan{grace: 60, finalizer: true})
	from := time.Now()
	w.delete("vmi/" + v.Name)
	v.offByItself()
	v.release()
	v.podGone(from.Add(90 * time.Second))
	v.ended("VMIDeleted", "Graceful", "ShutdownStarted", "ShutdownCompleted")
}

func TestADeletedLauncherPodShutsItsGuestDownAndLeavesNothing(t *testing.T) {
	w := given(t)
	v := w.vm(plan{grace: 60})
	from := time.Now()
	w.delete(v.launcherPod())
	v.offByItself()
	v.podGone(from.Add(90 * time.Second))
	v.ended("LauncherSignal", "Graceful", "ShutdownStarted", "ShutdownCompleted")
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

func TestADeafGuestIsDestroyedAtItsDeadlineAndNotByKubelet(t *testing.T) {
	w := given(t)
	v := w.vm(plan{Spec: node.Spec{Firmware: true}, grace: 8, podGrace: 38})
	from := time.Now()
	w.delete("vmi/" + v.Name)
	s := v.begun(either, 8*time.Second)
	v.destroyedAt(s.deadline)
	v.podGone(from.Add(38 * time.Second))
	v.ended(either, "Forced", "ShutdownStarted", "ShutdownForced")
}

func TestAPodDeletedWithAShorterGraceMovesTheDeadline(t *testing.T) {
	w := given(t)
	v := w.vm(plan{Spec: node.Spec{Firmware: true}, grace: 60})
	from := time.Now()
	w.delete(v.launcherPod(), "--grace-period=5")
	asked := time.Now()
	// Then the deadline is 3 s after the deletion. That is too short to rely on
	// status.json: the test takes the deadline from QEMU's log and from the guest's end.
	at := v.WaitGone(t, soon)
	s, ok := node.ParseTermination(v.qemuLog())
	w.step("destroyed %.3f s after the request", s.At.Sub(from).Seconds())
	if !ok || s.At.Before(from.Add(3*time.Second)) || s.At.After(asked.Add(4*time.Second)) || at.After(asked.Add(5*time.Second)) {
		t.Errorf("signal %+v (logged %v), gone %v; want it 3 s after the deletion, between %v and %v", s, ok, at, from, asked)
	}
	v.podGone(from.Add(soon))
	v.ended("LauncherSignal", "Forced", "ShutdownStarted", "GraceShortened", "ShutdownForced")
}

func TestAnEditedGracePeriodCountsUntilTheShutdownStarts(t *testing.T) {
	w := given(t)
	v := w.vm(plan{Spec: node.Spec{Behaviour: "slow=5"}, grace: 30, podGrace: 120})
	edit := func(seconds int) {
		w.Kubectl(t, "patch", "vmi", v.Name, "-n", namespace, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"terminationGracePeriodSeconds":%d}}`, seconds))
	}
	edit(90)
	v.grace = 90
	v.waitGuarded()
	w.step("edited to 90")

	from := time.Now()
	w.delete(v.launcherPod())
	s := v.begun("LauncherSignal", 90*time.Second)
	edit(1)
	v.kept(s)
	v.offByItself()
	v.podGone(from.Add(120 * time.Second))
	v.ended("LauncherSignal", "Graceful", "ShutdownStarted", "ShutdownCompleted")
}
