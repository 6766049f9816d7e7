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

// disruptors runs the controller of pod disruptions in two replicas with both feature
// gates. Neither replica has to be the leader.
func disruptors(t *testing.T) []*replica {
	t.Helper()
	shared.KubectlApply(t, "{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: kubevirt, namespace: default}, spec: {configuration: "+
		"{developerConfiguration: {featureGates: [PreemptionEvictionLiveMigration, NoExecuteTaintEvictionLiveMigration]}}}}")
	t.Cleanup(func() {
		_, _ = shared.TryKubectl(rig.After(t), "", "delete", "kubevirt", "kubevirt", "--ignore-not-found")
	})
	newNode(t, "node-disrupted")
	all := replicas(t, 2, "--controllers=pod-disruption")
	allSay(t, all, "FeatureGates:[PreemptionEvictionLiveMigration NoExecuteTaintEvictionLiveMigration]")
	return all
}

// preempted deletes the launcher pod as the scheduler does: it sets the condition first.
func (v *vm) preempted() {
	v.Helper()
	v.condition("PreemptionByScheduler")
	kit.Must(v, client.IgnoreNotFound(v.Delete(v.Context(), v.launcherPod())))
}

func (v *vm) condition(reason string) {
	v.Helper()
	v.Kubectl(v, "patch", "pod", "-n", v.NS, v.launcher(), "--subresource=status", "--type=strategic", "-p",
		fmt.Sprintf(`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":%q,"lastTransitionTime":%q}]}}`,
			reason, time.Now().UTC().Format(time.RFC3339)))
}

// Given a VM whose shutdown is held because Kubernetes deletes its launcher pod. When
// kubectl drain evicts the pod, as it does with terminating pods too, then the eviction is
// refused. Otherwise the API server would overwrite the reason for which the shutdown is
// held.
func TestAnEvictionOfAHeldLauncherIsRefused(t *testing.T) {
	disruptors(t)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
	v.preempted()
	kit.Eventually(t, "the VM is marked", func() bool { return v.marked() })
	if a := v.evict(); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") {
		t.Errorf("%+v", a)
	}
	// When the reason has been overwritten, then the eviction is still refused, and the
	// mark keeps its first cause.
	v.condition("EvictionByEvictionAPI")
	if a := v.evict(); a.code != 429 || evacuation.ExplanationOf(v.get()).Cause != "PreemptionByScheduler" {
		t.Errorf("%+v, %+v", a, v.get().Status)
	}
}

// Given a controller that is killed before the mark is written, or before it learns that the
// mark is written. When the next controller starts,
// then the VM is marked with the cause. Otherwise the VM would be shut down instead of
// moved.
func TestAControllerKilledInADisruptionsMarkIsReplaced(t *testing.T) {
	for name, written := range map[string]bool{"the mark is lost": false, "the mark is there": true} {
		t.Run(name, func(t *testing.T) {
			for _, r := range disruptors(t) {
				r.Kill() // the feature gates stay in force
			}
			w := newWire(t)
			r := replicasVia(t, 1, w.kubeconfig, "--controllers=pod-disruption")[0]
			v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-disrupted"})
			w.atMark.Store(new(func() bool { r.Kill(); return written }))
			v.preempted()
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
