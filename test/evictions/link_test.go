//go:build !unit

package evictions

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

const oneFile = "../../deploy/examples/vm.yaml"

// example returns the VMI and the pod of the one file, which are deleted with the test.
func example(t *testing.T) (s rig.Space, vmi func() *kubevirt.VirtualMachineInstance, pod func() *corev1.Pod) {
	t.Helper()
	s = shared.In(t, "default")
	t.Cleanup(func() {
		_, _ = shared.TryKubectl(rig.After(t), "", "delete", "-f", oneFile, "--ignore-not-found", "--grace-period=0", "--force")
	})
	return s, func() *kubevirt.VirtualMachineInstance {
			return rig.Read[kubevirt.VirtualMachineInstance](s, "vm-example")
		}, func() *corev1.Pod {
			return rig.Read[corev1.Pod](s, "virt-launcher-vm-example")
		}
}

func linked(p *corev1.Pod, to *kubevirt.VirtualMachineInstance) bool {
	return p.Labels[kubevirt.CreatedByLabel] == string(to.UID) && metav1.IsControlledBy(p, to) && p.Annotations["vmgrace.io/linked"] == string(to.UID)
}

// Given the file and a controller of a pod of somebody's, and no webhook. When the webhook is back,
// and runs with the shipped rights, then the pod is linked, the VMI's phase is written, and the pod
// keeps its controller. Otherwise an outage of the webhook would leave VMs that no drain moves.
func TestAPodThatTheWebhookHasMissedIsLinked(t *testing.T) {
	shared.front.backends.Store(&[]string{})
	s, vmi, pod := example(t)
	shared.Kubectl(t, "apply", "-f", oneFile)
	if linked(pod(), vmi()) {
		t.Fatal("the webhook is there")
	}
	set := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set"}}
	s.Make(set, "")
	v := s.VMI("owned", "", kubevirt.StrategyLiveMigrate)
	v.Labels = nil
	s.Make(v, "")
	owned := s.Launcher(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}, "")
	delete(owned.Labels, kubevirt.CreatedByLabel)
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: set.Name, UID: set.UID, Controller: new(true)}}
	s.Make(owned, "")
	replicas(t, 1, "--controllers=launcher-webhook,eviction-webhook,launcher")
	kit.Eventually(t, "the pod is linked", func() bool { return linked(pod(), vmi()) })
	kit.Eventually(t, "the VMI has a phase", func() bool { return vmi().Status.Phase == kubevirt.VMIScheduling })
	kit.Eventually(t, "the other pod has a VMI", func() bool { return len(rig.Read[corev1.Pod](s, owned.Name).OwnerReferences) == 2 })
	if p := rig.Read[corev1.Pod](s, owned.Name); !metav1.IsControlledBy(p, set) || p.OwnerReferences[1].UID != v.UID || p.OwnerReferences[1].Controller != nil {
		t.Errorf("%+v", p.OwnerReferences)
	}
	if again := shared.Kubectl(t, "apply", "-f", oneFile); strings.Count(again, "unchanged") != 2 {
		t.Errorf("applied again: %s", again)
	}
}

// Given a VMI that was deleted and applied again while a launcher of the former one lives: it shuts
// down, is on a lost node, or was moved. When the new one's pod is made, then that is refused, and it
// is said why; once the former one has ended it is made and linked. Otherwise two guests would run on
// one disk.
func TestALauncherIsRefusedWhileAFormerOneLives(t *testing.T) {
	replicas(t, 1)
	s := shared.In(t, "default")
	for name, moved := range map[string]bool{"again": false, "again-moved": true} {
		former := s.VMI(name, "", kubevirt.StrategyLiveMigrate)
		former.Labels = nil
		s.Make(former, "")
		left := s.Launcher(former, "node-a")
		if left.Name += "-first"; moved {
			left.Labels[kubevirt.MigrationJobLabel] = "m"
		}
		s.Make(left, rig.PodRuns)
		kit.Must(t, s.Delete(t.Context(), former))
		next := s.VMI(name, "", kubevirt.StrategyLiveMigrate)
		next.Labels = nil
		s.Make(next, "")
		makes := func(createdBy string) error {
			p := s.Launcher(next, "")
			if delete(p.Labels, kubevirt.CreatedByLabel); createdBy != "" {
				p.Labels[kubevirt.CreatedByLabel] = createdBy
			}
			return s.Create(t.Context(), p)
		}
		for _, createdBy := range []string{"", string(next.UID), "somebody-elses"} {
			kit.Eventually(t, "the former launcher is known", func() bool {
				err := makes(createdBy)
				return err != nil && strings.Contains(err.Error(), "VMI "+name+" has launcher pod "+left.Name+" of another VMI of this name, and it has not ended: its guest would run twice")
			})
		}
		kit.Must(t, s.Status().Patch(t.Context(), left, rig.Merge(`{"status":{"phase":"Succeeded"}}`)))
		kit.Eventually(t, "it is made", func() bool { return makes("") == nil })
		if p := rig.Read[corev1.Pod](s, "virt-launcher-"+name); !linked(p, next) {
			t.Errorf("%+v", p.ObjectMeta)
		}
	}
}

// Given a VMI. When eight launchers are made for it at once, with two replicas, then one is: it is
// linked, and the makers of the others are told. A request without effect takes no turn.
func TestOfLaunchersMadeAtOnceOneIs(t *testing.T) {
	replicas(t, 2)
	s := shared.In(t, "default")
	for _, generated := range []string{"", "virt-launcher-"} {
		v := s.VMI("", "", kubevirt.StrategyLiveMigrate)
		v.Labels = nil
		s.Make(v, "")
		pod := func(n int) *corev1.Pod {
			p := s.Launcher(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: v.Name}}, "")
			if p.Name = fmt.Sprintf("virt-launcher-%s-%d", v.Name, n); generated != "" {
				p.Name, p.GenerateName = "", generated
			}
			delete(p.Labels, kubevirt.CreatedByLabel)
			return p
		}
		kit.Must(t, s.Create(t.Context(), pod(9), client.DryRunAll))
		var made atomic.Int32
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				p := pod(n)
				switch err := s.Create(t.Context(), p); {
				case err == nil && linked(p, v):
					made.Add(1)
				case err == nil:
					t.Errorf("%s is made, and not linked", p.Name)
				case !strings.Contains(err.Error(), "launcher pod"):
					t.Error(err)
				}
			})
		}
		if all.Wait(); made.Load() != 1 {
			t.Errorf("%d launchers are linked, want 1", made.Load())
		}
	}
}

// Given pods that nobody would guard, or whose VMI is elsewhere. When they are made, then their maker
// is warned.
func TestWhatHidesALauncherIsSaid(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{})
	for words, meta := range map[string]string{
		"has not the label kubevirt.io=virt-launcher":           `labels: {kubevirt.io: virt-launchr}, annotations: {kubevirt.io/domain: x}`,
		`has not the annotation kubevirt.io/domain, but "kubev`: `labels: {kubevirt.io: virt-launcher}, annotations: {kubevirt.io/domian: x}`,
		"there is no VMI elsewhere in namespace default":        `labels: {kubevirt.io: virt-launcher}, annotations: {kubevirt.io/domain: elsewhere}`,
		"VMI " + v.name + " has the UID " + v.uid:               `labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: wrong}, annotations: {kubevirt.io/domain: ` + v.name + `}`,
	} {
		if strings.HasPrefix(words, "VMI") {
			kit.Must(t, v.Delete(t.Context(), v.launcherPod(), client.GracePeriodSeconds(0)))
		}
		kit.Eventually(t, "the warning "+words, func() bool { // a policy counts a moment after it was applied
			_, err := shared.TryKubectl(t.Context(), `{apiVersion: v1, kind: Pod, metadata: {name: virt-launcher-odd, namespace: default, `+meta+`}, spec: {containers: [{name: c, image: none}]}}`,
				"create", "--dry-run=server", "--warnings-as-errors", "-f", "-")
			return err != nil && strings.Contains(err.Error(), words)
		})
	}
}
