//go:build !unit

package migrations

import (
	"fmt"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// vmOn makes a VM that runs on a node, with this mark and these labels beside the node's.
func (s scene) vmOn(name, node, mark string, labels map[string]string) *kubevirt.VirtualMachineInstance {
	s.Helper()
	v := s.VMI(name, node, kubevirt.StrategyLiveMigrate)
	for key, value := range labels {
		v.Labels[key] = value
	}
	s.Make(v, fmt.Sprintf(`{"phase":"Running","nodeName":%q,"evacuationNodeName":%q,"conditions":[{"type":"LiveMigratable","status":"True"}]}`, node, mark))
	s.Make(s.Launcher(v, node), rig.PodRuns)
	return v
}

// Given what a day without a controller leaves: marks of a node that is gone and of a former
// node, a label of a migration that is gone, a budget and migrations of VMIs that are gone.
// When a controller starts with the shipped rights, then all of it goes, with Events and
// metrics. Otherwise it would stay for ever, because no event tells of it.
func TestWhatADayWithoutAControllerLeavesIsSwept(t *testing.T) {
	s := given(t)
	s.vmOn("lost", "node-gone", "node-gone", nil)
	moved := s.vmOn("moved", "node-a", "node-b", nil)
	s.Change(moved, `{"metadata":{"annotations":{"vmgrace.io/cordoned":"true","vmgrace.io/evacuation-cause":"Eviction"}}}`)
	s.vmOn("labelled", "node-a", "", map[string]string{kubevirt.MigrationTargetLabel: "node-b"})
	s.vmOn("stays", "node-c", "node-c", nil) // its mark counts
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.NS, Name: evacuation.BudgetName("0f0f0f0f-0000-4000-8000-000000000000")}}
	s.Make(budget, "")
	begun := s.Migrate("of-nobody", "none")
	s.SetStatus(begun, `{"phase":"TargetReady","migrationState":{"sourceNode":"node-a","targetNode":"node-b"}}`)
	ended := s.Migrate("ended", "none")
	s.Change(ended, `{"metadata":{"finalizers":["`+migration.Finalizer+`"]}}`)
	s.SetStatus(ended, `{"phase":"Failed","migrationState":{"startTimestamp":"2026-01-02T03:04:05Z","sourceNode":"node-a","targetNode":"node-gone"}}`)

	metrics := "127.0.0.1:" + rig.FreePorts(t, 1)[0]
	controller(t, "--metrics-address="+metrics)
	s.failed(begun, "is gone")
	s.letGoOfNobody(ended)
	for _, name := range []string{"lost", "moved"} {
		kit.Eventually(t, "the mark of "+name+" is taken back", func() bool { return s.vmi(name).Status.EvacuationNodeName == "" })
		kit.Eventually(t, "nothing of it stays on "+name, func() bool {
			v := s.vmi(name)
			return v.Condition(kubevirt.EvictionRequested) == nil && v.Annotations[evacuation.CordonedAnnotation] == ""
		})
	}
	kit.Eventually(t, "the label goes", func() bool { return s.vmi("labelled").Labels[kubevirt.MigrationTargetLabel] == "" })
	kit.Eventually(t, "the budget goes", func() bool { return rig.Find[policyv1.PodDisruptionBudget](s.Space, budget.Name) == nil })
	if v := s.vmi("stays"); v.Status.EvacuationNodeName != "node-c" {
		t.Error("a mark that counts is taken back")
	}
	for _, about := range []string{"lost", "moved", "labelled", budget.Name} {
		kit.Eventually(t, "an Event about "+about, func() bool {
			return strings.Contains(shared.Kubectl(t, "get", "events", "-n", s.NS, "--field-selector=reason=LeftoverRemoved,involvedObject.name="+about), "LeftoverRemoved")
		})
	}
	said := rig.Fetch("http://" + metrics + "/metrics")
	for _, counted := range []string{`{kind="mark"} 2`, `{kind="label"} 1`, `{kind="budget"} 1`, `{kind="pod"} 0`} {
		if !strings.Contains(said, "vmgrace_leftovers_removed_total"+counted) {
			t.Errorf("no vmgrace_leftovers_removed_total%s", counted)
		}
	}
}

// letGoOfNobody waits until a migration of a VMI that is gone has no finalizer, or is gone.
func (s scene) letGoOfNobody(m *kubevirt.VirtualMachineInstanceMigration) {
	s.Helper()
	kit.Eventually(s.T, "migration "+m.Name+" is let go", func() bool { now := s.read(m); return now == nil || len(now.Finalizers) == 0 })
}
