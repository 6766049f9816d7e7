//go:build !unit

package evictions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

const bothGates = `["PreemptionEvictionLiveMigration","NoExecuteTaintEvictionLiveMigration"]`

// disruptors runs the controller of pod disruptions in two replicas with these feature
// gates. Neither replica has to be the leader.
func disruptors(t *testing.T, gates string) []*replica {
	t.Helper()
	shared.KubectlApply(t, `{"apiVersion":"kubevirt.io/v1","kind":"KubeVirt","metadata":{"name":"kubevirt","namespace":"default"},
		"spec":{"configuration":{"developerConfiguration":{"featureGates":`+gates+`}}}}`)
	t.Cleanup(func() {
		_, _ = shared.TryKubectl(rig.After(t), "", "delete", "kubevirt", "kubevirt", "--ignore-not-found")
	})
	newNode(t, "node-disrupted")
	all := replicas(t, 2, "--controllers=pod-disruption")
	allSay(t, all, "FeatureGates:["+strings.NewReplacer(`"`, "", ",", " ", "[", "", "]", "").Replace(gates)+"]")
	return all
}

// disrupted deletes the launcher pod as Kubernetes does: it sets the condition first.
func (v *vm) disrupted(status, reason string) {
	v.Helper()
	v.condition(status, reason)
	kit.Must(v, client.IgnoreNotFound(v.Delete(v.Context(), v.launcherPod())))
}

func (v *vm) condition(status, reason string) {
	v.Helper()
	if reason != "" {
		v.conditionSince(status, reason, time.Now())
	}
}

func (v *vm) conditionSince(status, reason string, since time.Time) {
	v.Helper()
	v.Kubectl(v, "patch", "pod", "-n", v.NS, v.launcher(), "--subresource=status", "--type=strategic", "-p",
		fmt.Sprintf(`{"status":{"conditions":[{"type":"DisruptionTarget","status":%q,"reason":%q,"lastTransitionTime":%q}]}}`,
			status, reason, since.UTC().Format(time.RFC3339)))
}

func TestAVMWhoseLauncherKubernetesDeletesIsMarked(t *testing.T) {
	all := disruptors(t, bothGates)
	for name, c := range map[string]struct {
		vm
		status, reason string
		why            string // why the VM is not marked; "" where it is marked
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
			v.disrupted(c.status, c.reason)
			if c.why == "" {
				kit.Eventually(t, "the VM is marked", func() bool { return v.marked() })
				if vmi := v.get(); vmi.Status.EvacuationNodeName != c.node || evacuation.ExplanationOf(vmi).Cause != c.reason {
					t.Errorf("marked for %s, explained as %+v", vmi.Status.EvacuationNodeName, vmi.Status.Mark)
				}
				return
			}
			allSay(t, all, v.leftAlone(c.why))
			if v.marked() {
				t.Error("it is marked")
			}
		})
	}
	// Only one of the replicas logs a mark, once for each VM.
	marks := 0
	for _, r := range all {
		marks += strings.Count(r.Log(), "VM is to leave its node: Kubernetes deletes its launcher")
	}
	if marks != 4 {
		t.Errorf("%d marks were logged, want 4", marks)
	}
}

// Given a launcher pod with a condition of the scheduler that is 95 seconds old. The
// scheduler may set the condition and then not delete the pod, and Kubernetes removes the
// condition after 2 minutes. When somebody deletes the pod, then the VM is not marked and
// its eviction is allowed. Otherwise a user's own deletion would start a migration.
func TestADeletionLongAfterTheConditionMarksNothing(t *testing.T) {
	all := disruptors(t, bothGates)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	v.conditionSince("True", "PreemptionByScheduler", time.Now().Add(-95*time.Second))
	v.disrupted("", "")
	allSay(t, all, v.leftAlone("AnotherReason"))
	if a := v.evict(); a.code != 0 || v.marked() {
		t.Errorf("%+v, marked: %v", a, v.marked())
	}
}

// leftAlone returns what a replica logs about a VM that it does not mark.
func (v *vm) leftAlone(why string) string {
	return fmt.Sprintf(`"vmi":"%s/%s","why":"%s"`, v.NS, v.name, why)
}

// Given a VM whose shutdown is held because Kubernetes deletes its launcher pod. When
// kubectl drain evicts the pod, as it does with terminating pods too, then the eviction is
// refused. Otherwise the API server would overwrite the reason for which the shutdown is
// held.
func TestAnEvictionOfAHeldLauncherIsRefused(t *testing.T) {
	disruptors(t, bothGates)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	v.disrupted("True", "PreemptionByScheduler")
	kit.Eventually(t, "the VM is marked", func() bool { return v.marked() })
	if a := v.evict(); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") {
		t.Errorf("%+v", a)
	}
	// When the reason has been overwritten, then the eviction is still refused, and the
	// mark keeps its first cause.
	v.condition("True", "EvictionByEvictionAPI")
	if a := v.evict(); a.code != 429 || evacuation.ExplanationOf(v.get()).Cause != "PreemptionByScheduler" {
		t.Errorf("%+v, %+v", a, v.get().Status)
	}
}

// Given a launcher pod that Kubernetes deletes, of a VM that is not migratable or has
// strategy None. When the pod is evicted, then the eviction is allowed and the VM is not
// marked. Otherwise the shutdown would wait for a migration that nobody makes.
func TestAnEvictionMarksNoVMThatAHoldCannotMove(t *testing.T) {
	disruptors(t, bothGates)
	for name, v := range map[string]vm{"not migratable": {strategy: "LiveMigrate"}, "None by now": {strategy: "LiveMigrate", migratable: true}} {
		v.node = "node-disrupted"
		made := newVM(t, v)
		if name == "None by now" {
			shared.Kubectl(t, "patch", "vmi", "-n", made.NS, made.name, "--type=merge", "-p", `{"spec":{"evictionStrategy":"None"}}`)
		}
		made.disrupted("True", "PreemptionByScheduler")
		if a := made.evict(); a.code != 0 || made.marked() {
			t.Errorf("%s: %+v, marked: %v", name, a, made.marked())
		}
	}
}

func TestAGateThatIsOffMarksNothing(t *testing.T) {
	all := disruptors(t, `["NoExecuteTaintEvictionLiveMigration"]`)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	other := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	if got := v.readPod().Annotations["vmgrace.io/hold-for"]; got != "DeletionByTaintManager" {
		t.Errorf("it may be held for %q", got)
	}
	v.disrupted("True", "PreemptionByScheduler")
	other.disrupted("True", "DeletionByTaintManager")
	allSay(t, all, v.leftAlone("GateOff"))
	kit.Eventually(t, "the other is marked", func() bool { return other.marked() })
	if v.marked() {
		t.Error("marked though its gate is off")
	}
	if a := v.evict(); a.code != 0 {
		t.Errorf("the eviction of a pod that nobody holds: %+v", a)
	}
}

// Given a controller that is killed before the mark is written, or before it learns that the
// mark is written. When the next controller starts,
// then the VM is marked with the cause. Otherwise the VM would be shut down instead of
// moved.
func TestAControllerKilledInADisruptionsMarkIsReplaced(t *testing.T) {
	for name, written := range map[string]bool{"the mark is lost": false, "the mark is there": true} {
		t.Run(name, func(t *testing.T) {
			for _, r := range disruptors(t, bothGates) {
				r.Kill() // the feature gates stay in force
			}
			w := newWire(t)
			r := replicasVia(t, 1, w.kubeconfig, "--controllers=pod-disruption")[0]
			v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
			w.atMark.Store(new(func() bool { r.Kill(); return written }))
			v.disrupted("True", "PreemptionByScheduler")
			if _, ended := r.Exited(soon); !ended {
				t.Fatal("it marks nothing")
			}
			if vmi := v.get(); !written && (v.marked() || vmi.Status.Mark != nil || vmi.Condition(kubevirt.EvictionRequested) != nil) {
				t.Fatalf("a part of the mark is written: %+v", vmi)
			}
			replicas(t, 1, "--controllers=pod-disruption")
			kit.Eventually(t, "the VM is marked", func() bool { return v.marked() })
			if vmi := v.get(); evacuation.ExplanationOf(vmi).Cause != "PreemptionByScheduler" || vmi.Status.EvacuationNodeName != "node-disrupted" {
				t.Errorf("marked for %s, explained as %+v", vmi.Status.EvacuationNodeName, vmi.Status.Mark)
			}
		})
	}
}
