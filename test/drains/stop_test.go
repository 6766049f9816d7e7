//go:build !unit

package drains

import (
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

func unschedulable(t *testing.T, name string) bool {
	t.Helper()
	return rig.Read[corev1.Node](shared.In(t, ""), name).Spec.Unschedulable
}

func TestTheEndOfTheTimeoutIsNoSuccess(t *testing.T) {
	on := newNode(t)
	p := newPod(t, on, "p", nil)
	r := begin(t, on, "--timeout=8s")
	terminating(t, p)
	r.ends(1)
	early := begin(t, on, "--timeout=1ns")
	early.ends(1)
	early.said("--timeout is over; which pods have to go is not known") // it had no time to list the pods
	r.said("--timeout is over; pods left: 1\n  default/" + p.Name + ": Terminating")
}

func TestCtrlC(t *testing.T) {
	for name, c := range map[string]struct {
		flags    []string
		before   bool // somebody else has cordoned the node
		cordoned bool
	}{
		"stays cordoned":                      {nil, false, true},
		"gives the node back":                 {[]string{"--uncordon-on-cancel"}, false, false},
		"not what somebody else has cordoned": {[]string{"--uncordon-on-cancel"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			on := newNode(t)
			if c.before {
				shared.Kubectl(t, "cordon", on)
			}
			p := newPod(t, on, "p", nil)
			r := begin(t, append(c.flags, on)...)
			terminating(t, p)
			kit.Must(t, r.Signal(syscall.SIGINT))
			r.ends(130)
			if got := unschedulable(t, on); got != c.cordoned {
				t.Errorf("cordoned is %v", got)
			}
			r.said("interrupted; pods left: 1\n  default/" + p.Name)
			again := begin(t, on) // it continues the drain
			end(t, p)
			again.ends(0)
		})
	}
}

func TestANodeThatIsDeletedInTheMiddleIsDone(t *testing.T) {
	on := newNode(t)
	p := newPod(t, on, "p", nil)
	r := begin(t, on)
	terminating(t, p)
	kit.Must(t, shared.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: on}}))
	r.ends(0)
	r.said("node/" + on + " the node is gone")
}

func TestAnAPIServerThatIsAwayForHalfAMinute(t *testing.T) {
	on := newNode(t)
	a, b := newPod(t, on, "a", nil), newPod(t, on, "b", nil)
	r := begin(t, on)
	terminating(t, a)
	terminating(t, b)
	end(t, a)
	shared.Kill()
	if _, ended := r.Exited(30 * time.Second); ended {
		t.Fatal("it has ended: an error is no answer")
	}
	kit.Must(t, shared.Start(t.Context()))
	end(t, b)
	r.ends(0)
}

func TestItNeverCutsAVMsGracePeriod(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		off   bool
	}{
		"--grace-period=0 --force":           {[]string{"--grace-period=0", "--force"}, false},
		"--grace-period=0 --force-power-off": {[]string{"--grace-period=0", "--force-power-off"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			on := newNode(t)
			vm := newPod(t, on, "vm", func(p *corev1.Pod) { p.Labels["kubevirt.io"] = "virt-launcher" })
			r := begin(t, append(c.flags, on)...)
			if c.off {
				eventually(t, "it is powered off", func() bool { return rig.Find[corev1.Pod](shared.In(t, "default"), vm.Name) == nil })
				r.ends(0)
				return
			}
			terminating(t, vm)
			now := rig.Read[corev1.Pod](shared.In(t, "default"), vm.Name)
			if *now.DeletionGracePeriodSeconds != 30 {
				t.Errorf("its guest has %d s", *now.DeletionGracePeriodSeconds)
			}
			end(t, vm)
			r.ends(0)
		})
	}
}

// markedVM makes a VM as cluster-controller marks it, with its budget and its pod.
func markedVM(t *testing.T, on, name string, strategy kubevirt.EvictionStrategy) (*kubevirt.VirtualMachineInstance, *corev1.Pod) {
	t.Helper()
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: on + "-" + name}, Spec: kubevirt.VirtualMachineInstanceSpec{EvictionStrategy: &strategy}}
	shared.In(t, "").Make(v, "")
	v.Status = kubevirt.VirtualMachineInstanceStatus{Phase: kubevirt.VMIRunning, NodeName: on, EvacuationNodeName: on}
	kit.Must(t, shared.Status().Update(t.Context(), v))
	p := newPod(t, on, name, func(p *corev1.Pod) {
		p.Labels["kubevirt.io"], p.Labels["kubevirt.io/created-by"] = "virt-launcher", string(v.UID)
	})
	b := budget(t, v.Name, p, policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, ExpectedPods: 1, CurrentHealthy: 1})
	b.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: v.Name, UID: v.UID}}
	kit.Must(t, shared.Update(t.Context(), b))
	return v, p
}

func migration(t *testing.T, v *kubevirt.VirtualMachineInstance, on string) *kubevirt.VirtualMachineInstanceMigration {
	t.Helper()
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v.Name, Annotations: map[string]string{kubevirt.EvacuationMigrationAnnotation: on}},
		Spec: kubevirt.VirtualMachineInstanceMigrationSpec{VMIName: v.Name}}
	shared.In(t, "").Make(m, "")
	return m
}

// moving is the launcher pod of a VM that moves, and the VM's migration.
type moving struct {
	pod *corev1.Pod
	m   *kubevirt.VirtualMachineInstanceMigration
}

func (m *moving) runs(t *testing.T, percent int) {
	t.Helper()
	m.m.Status = kubevirt.VirtualMachineInstanceMigrationStatus{Phase: kubevirt.MigrationRunning,
		MigrationState: &kubevirt.MigrationState{Progress: &kubevirt.MigrationProgress{Percent: int64(percent), RemainingMiB: 300}}}
	kit.Must(t, shared.Status().Update(t.Context(), m.m))
}

func TestCancelTakesTheMarksBack(t *testing.T) {
	on, others := newNode(t), newNode(t)
	moved, _ := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	external, _ := markedVM(t, others, "vm", kubevirt.StrategyExternal)
	pending := migration(t, moved, on)
	mark := func(v *kubevirt.VirtualMachineInstance) string {
		return rig.Read[kubevirt.VirtualMachineInstance](shared.In(t, "default"), v.Name).Status.EvacuationNodeName
	}
	r := begin(t, "--cancel", on, others)
	r.ends(0)
	if mark(moved) != "" || mark(external) != others {
		t.Errorf("marks: %q, %q:\n%s", mark(moved), mark(external), r.Log())
	}
	if rig.Find[kubevirt.VirtualMachineInstanceMigration](shared.In(t, "default"), pending.Name) != nil {
		t.Error("the pending migration is there")
	}
	begin(t, "--cancel", on).ends(0)
}
