//go:build !unit

package drains

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
)

// notComputed gives a budget the status of one whose pods have a controller without a scale
// subresource.
func notComputed(t *testing.T, b *policyv1.PodDisruptionBudget) {
	t.Helper()
	b.Status = policyv1.PodDisruptionBudgetStatus{Conditions: []metav1.Condition{{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: "virtualmachineinstances.kubevirt.io does not implement the scale subresource", LastTransitionTime: metav1.Now(),
	}}}
	kit.Must(t, shared.Status().Update(t.Context(), b))
}

func TestABudgetThatCannotBeComputedIsNamedAtOnce(t *testing.T) {
	on := newNode(t)
	p := newPod(t, on, "vm", func(p *corev1.Pod) { p.Labels["kubevirt.io"] = "virt-launcher" })
	notComputed(t, budget(t, on+"-never", p, policyv1.PodDisruptionBudgetStatus{}))
	r := begin(t, on, "--timeout=40s")
	r.ends(1)
	want := p.Name + ": Failed: PodDisruptionBudget default/" + on + "-never can never allow an eviction (SyncFailed): virtualmachineinstances.kubevirt.io does not"
	if !strings.Contains(r.Log(), want) || strings.Contains(r.Log(), "--timeout is over") || isTerminating(t, p) {
		t.Errorf("it does not say %q:\n%s", want, r.Log())
	}
}

func TestAMigrationWithoutANodeHasTheSchedulersWords(t *testing.T) {
	on := newNode(t)
	v, p := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	m := migration(t, v, on)
	m.Status.Phase = kubevirt.MigrationScheduling
	kit.Must(t, shared.Status().Update(t.Context(), m))
	target := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.Name + "-target", Labels: map[string]string{kubevirt.MigrationJobLabel: string(m.UID)}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	shared.In(t, "").Make(target, "")
	target.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message: "0/2 nodes are available: 1 node(s) were unschedulable."}}
	kit.Must(t, shared.Status().Update(t.Context(), target))
	r := begin(t, on)
	r.says(p.Name + ": Moving: migration Scheduling: 0/2 nodes are available: 1 node(s) were unschedulable.")
	target.Status.Conditions[0].Message = "0/3 nodes are available"
	kit.Must(t, shared.Status().Update(t.Context(), target))
	r.says("migration Scheduling: 0/3 nodes are available")
	kit.Must(t, shared.SubResource("binding").Create(t.Context(), target, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "other"}}))
	r.says(p.Name + ": Moving: migration Scheduling\n")
	kit.Must(t, shared.Get(t.Context(), client.ObjectKeyFromObject(target), target))
	target.Status.Phase = corev1.PodRunning // it is not Ready: its guest may answer the probes
	kit.Must(t, shared.Status().Update(t.Context(), target))
	r.says(p.Name + ": Moving: migration Scheduling: waits for its turn\n")
	end(t, p)
	r.ends(0)
}

func TestTheLauncherDirectoryIsNoLocalData(t *testing.T) {
	memory := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
	disk := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for name, c := range map[string]struct {
		app     string
		volumes []corev1.Volume
		drains  bool
	}{
		"a launcher's":      {"virt-launcher", []corev1.Volume{{Name: "vmgrace", VolumeSource: memory}}, true},
		"and another one":   {"virt-launcher", []corev1.Volume{{Name: "vmgrace", VolumeSource: memory}, {Name: "data", VolumeSource: disk}}, false},
		"on the disk":       {"virt-launcher", []corev1.Volume{{Name: "vmgrace", VolumeSource: disk}}, false},
		"of somebody else":  {"mine", []corev1.Volume{{Name: "vmgrace", VolumeSource: memory}}, false},
		"of another's name": {"virt-launcher", []corev1.Volume{{Name: "data", VolumeSource: memory}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			on := newNode(t)
			p := newPod(t, on, "p", func(p *corev1.Pod) { p.Labels["kubevirt.io"], p.Spec.Volumes = c.app, c.volumes })
			r := begin(t, on)
			if c.drains {
				terminating(t, p)
				end(t, p)
				r.ends(0)
				return
			}
			r.ends(1)
			if !strings.Contains(r.Log(), "Pods with local storage") || isTerminating(t, p) {
				t.Errorf("it says\n%s", r.Log())
			}
		})
	}
}

// Given a VM that has moved, and the launcher pod that its guest has left. When the node is
// drained, then vmdrain says that this pod ends by itself, and waits for that.
func TestThePodThatAGuestHasLeftIsFollowed(t *testing.T) {
	on := newNode(t)
	v, p := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	v.Status.EvacuationNodeName, v.Status.NodeName = "", "other"
	v.Status.MigrationState = &kubevirt.MigrationState{SourceNode: on, SourcePod: p.Name, TargetNode: "other"}
	kit.Must(t, shared.Status().Update(t.Context(), v))
	r := begin(t, on)
	r.says(p.Name + ": Moving: its VM has moved to node other: it ends by itself\n")
	end(t, p)
	r.ends(0)
}

// Given a VM that has moved, and its pod, which a second container keeps on the node. When
// the VM's budget is deleted, then vmdrain evicts the pod. Otherwise the drain would wait
// without end.
func TestAFinishedVMsPodGoesWithItsBudget(t *testing.T) {
	on := newNode(t)
	v, p := markedVM(t, on, "vm", kubevirt.StrategyLiveMigrate)
	v.Status.EvacuationNodeName, v.Status.NodeName = "", "other" // it has moved
	kit.Must(t, shared.Status().Update(t.Context(), v))
	r := begin(t, on)
	r.says(p.Name + ": Blocked: waits for PodDisruptionBudget")
	kit.Must(t, shared.Delete(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v.Name}}))
	terminating(t, p)
	end(t, p)
	r.ends(0)
}

func TestPodsAreDeletedAfterRefusedEvictions(t *testing.T) {
	on := newNode(t)
	plain := newPod(t, on, "plain", nil)
	vm := newPod(t, on, "vm", func(p *corev1.Pod) { p.Labels["kubevirt.io"] = "virt-launcher" })
	for _, p := range []*corev1.Pod{plain, vm} {
		budget(t, p.Name, p, policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, ExpectedPods: 1, CurrentHealthy: 1})
	}
	dry := begin(t, on, "--delete-after=2", "--dry-run=server")
	dry.says(plain.Name + " (server dry run): Blocked: PodDisruptionBudget")
	dry.ends(1) // for the VM's pod
	if isTerminating(t, plain) {
		t.Error("a dry run has deleted a pod")
	}
	r := begin(t, on, "--delete-after=2")
	terminating(t, plain)
	r.says(plain.Name + ": Terminating: deleted after 2 refused evictions")
	end(t, plain)
	r.ends(1)
	if want := vm.Name + ": Failed: PodDisruptionBudget default/" + vm.Name + " keeps 1 of 1"; !strings.Contains(r.Log(), want) || isTerminating(t, vm) {
		t.Errorf("it does not say %q:\n%s", want, r.Log())
	}
}
