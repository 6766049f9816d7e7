//go:build !unit

package evictions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/kit"
)

const bothGates = `["PreemptionEvictionLiveMigration","NoExecuteTaintEvictionLiveMigration"]`

// disruptors run the controller in two replicas, of which none leads, with these
// feature gates.
func disruptors(t *testing.T, gates string) []*replica {
	t.Helper()
	shared.api.KubectlApply(t, `{"apiVersion":"kubevirt.io/v1","kind":"KubeVirt","metadata":{"name":"kubevirt","namespace":"default"},
		"spec":{"configuration":{"developerConfiguration":{"featureGates":`+gates+`}}}}`)
	t.Cleanup(func() {
		_, _ = shared.api.TryKubectl(contextOf(t), "", "delete", "kubevirt", "kubevirt", "--ignore-not-found")
	})
	newNode(t, "node-disrupted")
	all := replicas(t, 2, "--controllers=pod-disruption")
	for _, r := range all {
		kit.Eventually(t, "a replica has the feature gates", func() bool {
			return strings.Contains(r.Log(), "FeatureGates:["+strings.NewReplacer(`"`, "", ",", " ", "[", "", "]", "").Replace(gates)+"]")
		})
	}
	return all
}

// disrupted is a launcher pod deleted as Kubernetes does: the condition first.
func (v *vm) disrupted(t *testing.T, status, reason string) {
	t.Helper()
	v.condition(t, status, reason)
	kit.Must(t, client.IgnoreNotFound(shared.objects.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: v.launcher()}})))
}

func (v *vm) condition(t *testing.T, status, reason string) {
	t.Helper()
	if reason == "" {
		return
	}
	v.conditionSince(t, status, reason, time.Now())
}

func (v *vm) conditionSince(t *testing.T, status, reason string, since time.Time) {
	t.Helper()
	shared.api.Kubectl(t, "patch", "pod", "-n", v.namespace, v.launcher(), "--subresource=status", "--type=strategic", "-p",
		fmt.Sprintf(`{"status":{"conditions":[{"type":"DisruptionTarget","status":%q,"reason":%q,"lastTransitionTime":%q}]}}`,
			status, reason, since.UTC().Format(time.RFC3339)))
}

func TestAVMWhoseLauncherKubernetesDeletesIsMarked(t *testing.T) {
	all := disruptors(t, bothGates)
	for name, c := range map[string]struct {
		vm
		status, reason string
		why            string // it is not marked; "": it is
	}{
		"preempted":           {vm{strategy: "LiveMigrate", migratable: true}, "True", "PreemptionByScheduler", ""},
		"tainted away":        {vm{strategy: "LiveMigrate", migratable: true}, "True", "DeletionByTaintManager", ""},
		"IfPossible":          {vm{strategy: "LiveMigrateIfPossible", migratable: true}, "True", "PreemptionByScheduler", ""},
		"External":            {vm{strategy: "External"}, "True", "PreemptionByScheduler", ""},
		"None":                {vm{strategy: "None", migratable: true}, "True", "PreemptionByScheduler", "StrategyNone"},
		"not migratable":      {vm{strategy: "LiveMigrate"}, "True", "PreemptionByScheduler", "NotMigratable"},
		"not any more":        {vm{strategy: "LiveMigrate", migratable: true}, "False", "PreemptionByScheduler", "AnotherReason"},
		"node pressure":       {vm{strategy: "LiveMigrate", migratable: true}, "True", "TerminationByKubelet", "AnotherReason"},
		"API eviction":        {vm{strategy: "LiveMigrate", migratable: true}, "True", "EvictionByEvictionAPI", "AnotherReason"},
		"plain deletion":      {vm{strategy: "LiveMigrate", migratable: true}, "", "", "AnotherReason"},
		"on a node not Ready": {vm{strategy: "LiveMigrate", migratable: true, node: "node-that-is-not-there"}, "True", "PreemptionByScheduler", "NodeNotReady"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.node == "" {
				c.node = "node-disrupted"
			}
			v := newVM(t, c.vm)
			v.disrupted(t, c.status, c.reason)
			if c.why == "" {
				kit.Eventually(t, "the VM is marked", func() bool { return v.marked(t) })
				if vmi := v.get(t); vmi.Status.EvacuationNodeName != c.node || vmi.Annotations["vmgrace.io/evacuation-cause"] != c.reason {
					t.Errorf("marked for %s, cause %v", vmi.Status.EvacuationNodeName, vmi.Annotations)
				}
				return
			}
			for _, r := range all {
				kit.Eventually(t, "both replicas leave it alone", func() bool { return strings.Contains(r.Log(), v.leftAlone(c.why)) })
			}
			if v.marked(t) {
				t.Error("it is marked")
			}
		})
	}
	// One of the replicas says it, once for each VM.
	marks := 0
	for _, r := range all {
		marks += strings.Count(r.Log(), "VM is to leave its node: Kubernetes deletes its launcher")
	}
	if marks != 4 {
		t.Errorf("%d marks were logged, want 4", marks)
	}
}

// The scheduler may have left the condition on a pod that it did not delete in the end;
// it goes after 2 minutes.
func TestADeletionLongAfterTheConditionMarksNothing(t *testing.T) {
	all := disruptors(t, bothGates)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	v.conditionSince(t, "True", "PreemptionByScheduler", time.Now().Add(-95*time.Second))
	v.disrupted(t, "", "")
	for _, r := range all {
		kit.Eventually(t, "both replicas leave it alone", func() bool { return strings.Contains(r.Log(), v.leftAlone("AnotherReason")) })
	}
	if a := v.evict(t, nil); a.code != 0 || v.marked(t) {
		t.Errorf("%+v, marked: %v", a, v.marked(t))
	}
}

// leftAlone is what a replica logs of a VM that it does not mark.
func (v *vm) leftAlone(why string) string {
	return fmt.Sprintf(`"vmi":"%s/%s","why":"%s"`, v.namespace, v.name, why)
}

// kubectl drain evicts terminating pods too, and the API server then writes
// another reason over that for which the shutdown is held.
func TestAnEvictionOfAHeldLauncherIsRefused(t *testing.T) {
	disruptors(t, bothGates)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	v.disrupted(t, "True", "PreemptionByScheduler")
	kit.Eventually(t, "the VM is marked", func() bool { return v.marked(t) })
	if a := v.evict(t, nil); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") {
		t.Errorf("%+v", a)
	}
	// Also after somebody has overwritten the reason: the mark's cause is the first.
	v.condition(t, "True", "EvictionByEvictionAPI")
	if a := v.evict(t, nil); a.code != 429 || v.get(t).Annotations["vmgrace.io/evacuation-cause"] != "PreemptionByScheduler" {
		t.Errorf("%+v, %v", a, v.get(t).Annotations)
	}
}

// A mark would hold up the shutdown for a move that nobody makes.
func TestAnEvictionMarksNoVMThatAHoldCannotMove(t *testing.T) {
	disruptors(t, bothGates)
	for name, v := range map[string]vm{"not migratable": {strategy: "LiveMigrate"}, "None by now": {strategy: "LiveMigrate", migratable: true}} {
		v.node = "node-disrupted"
		made := newVM(t, v)
		if name == "None by now" {
			shared.api.Kubectl(t, "patch", "vmi", "-n", made.namespace, made.name, "--type=merge", "-p", `{"spec":{"evictionStrategy":"None"}}`)
		}
		made.disrupted(t, "True", "PreemptionByScheduler")
		if a := made.evict(t, nil); a.code != 0 || made.marked(t) {
			t.Errorf("%s: %+v, marked: %v", name, a, made.marked(t))
		}
	}
}

func TestAGateThatIsOffMarksNothing(t *testing.T) {
	all := disruptors(t, `["NoExecuteTaintEvictionLiveMigration"]`)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	other := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	if got := v.holdFor(t); got != "DeletionByTaintManager" {
		t.Errorf("it may be held for %q", got)
	}
	v.disrupted(t, "True", "PreemptionByScheduler")
	other.disrupted(t, "True", "DeletionByTaintManager")
	for _, r := range all {
		kit.Eventually(t, "both replicas leave it alone", func() bool { return strings.Contains(r.Log(), v.leftAlone("GateOff")) })
	}
	kit.Eventually(t, "the other is marked", func() bool { return other.marked(t) })
	if v.marked(t) {
		t.Error("marked though its gate is off")
	}
	if a := v.evict(t, nil); a.code != 0 {
		t.Errorf("the eviction of a pod that nobody holds: %+v", a)
	}
}

func (v *vm) holdFor(t *testing.T) string {
	t.Helper()
	p := &corev1.Pod{}
	kit.Must(t, shared.objects.Get(t.Context(), client.ObjectKey{Namespace: v.namespace, Name: v.launcher()}, p))
	return p.Annotations["vmgrace.io/hold-for"]
}

// The cause is written, and then the process is no more: before the mark is there, or
// before it knows that it is.
func TestAControllerKilledInADisruptionsMarkIsReplaced(t *testing.T) {
	for name, written := range map[string]bool{"the mark is lost": false, "the mark is there": true} {
		t.Run(name, func(t *testing.T) {
			for _, r := range disruptors(t, bothGates) {
				r.Kill() // the gates stay
			}
			w := newWire(t)
			r := replicasVia(t, 1, w.kubeconfig, "--controllers=pod-disruption")[0]
			v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
			w.atMark.Store(new(func() bool { r.Kill(); return written }))
			v.disrupted(t, "True", "PreemptionByScheduler")
			if _, ended := r.Exited(soon); !ended {
				t.Fatal("it marks nothing")
			}
			if vmi := v.get(t); vmi.Annotations["vmgrace.io/evacuation-cause"] == "" || !written && v.marked(t) {
				t.Fatalf("it did not die between the two: %+v", vmi)
			}
			replicas(t, 1, "--controllers=pod-disruption")
			kit.Eventually(t, "the VM is marked", func() bool { return v.marked(t) })
			if vmi := v.get(t); vmi.Annotations["vmgrace.io/evacuation-cause"] != "PreemptionByScheduler" || vmi.Status.EvacuationNodeName != "node-disrupted" {
				t.Errorf("marked for %s, cause %v", vmi.Status.EvacuationNodeName, vmi.Annotations)
			}
		})
	}
}
