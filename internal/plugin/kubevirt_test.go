package plugin

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	podstatus "github.com/vmgrace/vmgrace/api/launcherpod/status"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
)

// preempted has a marked VM of KubeVirt's whose launcher is preempted: the VMI names the target,
// and no agent has written a condition.
func preempted() *Objects {
	v, p := vmi("vm", "n1", kubevirt.VMIRunning, migratable()), launcherPod("vm", "n1", nil)
	v.Status.EvacuationNodeName = "n1"
	v.Status.MigrationState = &kubevirt.MigrationState{MigrationUID: "m", SourceNode: "n1", TargetNode: "n2"}
	p.DeletionTimestamp = &metav1.Time{Time: noon()}
	p.Annotations = map[string]string{"vmgrace.io/hold-for": "PreemptionByScheduler,DeletionByTaintManager"}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"}}
	m := kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kubevirt-evacuation-x", UID: "m"}}
	m.Spec.VMIName, m.Status.Phase = "vm", kubevirt.MigrationRunning
	return &Objects{VMIs: []kubevirt.VirtualMachineInstance{v}, Launchers: []corev1.Pod{p}, Migrations: []kubevirt.VirtualMachineInstanceMigration{m}}
}

func TestAHeldVMOfKubeVirtIsShownWithCauseAndTarget(t *testing.T) {
	d := VMs(preempted(), noon())[0]
	if d.Phase != podstatus.Held || d.Cause != "PreemptionByScheduler" || d.Mark == nil {
		t.Errorf("the VM is shown in phase %q, cause %q, mark %v", d.Phase, d.Cause, d.Mark)
	}
	if got := migrationText(&d); got != "Running to n2" {
		t.Errorf("its migration is %q", got)
	}
	if d.RemainingSeconds != nil {
		t.Errorf("the time left is unknown, and %d s are shown", *d.RemainingSeconds)
	}
}

func TestAnEarlierMigrationDoesNotNameTheTarget(t *testing.T) {
	o := preempted()
	o.VMIs[0].Status.MigrationState.MigrationUID = "earlier"
	if got := VMs(o, noon())[0].Migration.Target; got != "" {
		t.Errorf("the target is %q", got)
	}
}

func TestADeletedVMOfKubeVirtIsNotHeld(t *testing.T) {
	o := preempted()
	o.VMIs[0].DeletionTimestamp = &metav1.Time{Time: noon()}
	if got := VMs(o, noon())[0].Phase; got != phaseTerminating {
		t.Errorf("the phase is %q", got)
	}
}

func TestAMoveWithoutAKnownTargetNamesNone(t *testing.T) {
	out := &bytes.Buffer{}
	m := &preempted().Migrations[0]
	m.Status.Phase = kubevirt.MigrationSucceeded
	s := &session{Streams: Streams{Output: drain.Output{Out: out}}}
	if err := s.ended(m); err != nil || out.String() != "vmi/vm moved\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestALauncherThatNothingMovesIsNotHeld(t *testing.T) {
	o := preempted()
	o.VMIs[0].Status.EvacuationNodeName, o.Migrations = "", nil
	if got := VMs(o, noon())[0].Phase; got != phaseTerminating {
		t.Errorf("the phase is %q", got)
	}
}
