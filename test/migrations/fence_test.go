//go:build !unit

package migrations

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// lose makes a node not Ready until the test ends.
func (s scene) lose(name string) {
	s.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.SetStatus(n, `{"conditions":[{"type":"Ready","status":"Unknown","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`)
	s.Cleanup(func() {
		after := rig.After(s.T)
		kit.Must(s.T, shared.Status().Patch(after, n, rig.Merge(`{"status":%s}`, rig.NodeReady)))
		kit.Must(s.T, shared.Patch(after, n, rig.Merge(`{"spec":{"taints":null},"metadata":{"annotations":{%q:null}}}`, migration.FencedAnnotation)))
	})
}

// undecided waits until the VMI says what its migration waits for, or that it waits for nothing.
func (s scene) undecided(vm, words string) {
	s.Helper()
	kit.Eventually(s.T, "the condition MigrationUndecided: "+words, func() bool {
		c := s.vmi(vm).Condition(kubevirt.MigrationUndecided)
		return words == "" && c == nil || words != "" && c != nil && c.Status == kubevirt.ConditionTrue && strings.Contains(c.Message, words)
	})
}

// Given a complete copy whose source is lost, the VMI and an Event say what decides it. When the
// node is declared dead, the copy is resumed and the VM has moved. The agent of that node cannot
// report anything else any more.
func TestALostSourceIsNamedAndFenced(t *testing.T) {
	for how, fence := range map[string]string{
		"by the taint":      `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`,
		"by the annotation": `{"metadata":{"annotations":{"vmgrace.io/fenced":"boot-1"}}}`,
	} {
		t.Run(how, func(t *testing.T) {
			s, m := placed(t)
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
			s.SetStatus(n, `{"nodeInfo":{"bootID":"boot-1"}}`)
			s.to(m, kubevirt.MigrationRunning)
			s.says("node-b", kubevirt.TargetArrived, m)
			s.lose("node-a")
			s.undecided("vm", "since 2026-01-01T00:00:00Z: the agent of node node-a is to report whether the guest still runs there")
			s.Change(n, `{"metadata":{"annotations":{"vmgrace.io/fenced":"boot-0"}}}`) // of a former boot: no proof
			kit.Eventually(t, "an Event with the command", func() bool {
				return strings.Contains(shared.Kubectl(t, "get", "events", "-n", s.NS, "--field-selector=reason=MigrationUndecided", "-o", "jsonpath={.items[*].message}"),
					"kubectl taint nodes node-a node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
			})
			if state := s.read(m).Status.MigrationState; state.SourceState != "" {
				t.Fatalf("%s without proof", state.SourceState)
			}

			s.Change(n, fence)
			kit.Eventually(t, "it is fenced", func() bool {
				state := s.read(m).Status.MigrationState
				return state.SourceState == kubevirt.SourceGone && state.SourceFenced != ""
			})
			refused(t, "the fenced agent's report", s.patches("node-a", m, state(`"vmgraceSourceState":"Running"`)))
			s.says("node-b", kubevirt.TargetRunning, m)
			s.comes(m, kubevirt.MigrationSucceeded)
			s.undecided("vm", "")
			if v := s.vmi("vm"); v.Status.NodeName != "node-b" || len(v.Status.FencedNodes) != 1 || v.Status.FencedNodes[0] != "node-a" {
				t.Errorf("the VMI's status: %+v", v.Status)
			}
		})
	}
}

// Given a target that is lost before the guest is sent, the migration ends at once, and its pod,
// which stays on that node, does not keep the VM from the next one.
func TestALostTargetDoesNotKeepTheVM(t *testing.T) {
	s, m := placed(t)
	s.to(m, kubevirt.MigrationPreparingTarget)
	s.lose("node-b")
	s.failed(m, "the target's node node-b is not Ready")
	s.letGo(m)
	if p := s.target(m); p == nil || p.DeletionTimestamp == nil {
		t.Fatalf("the target pod is not being deleted: %+v", p)
	}
	next := s.Migrate("next", "vm")
	p := s.comesTarget(next)
	s.runsOn("node-c", p)
	s.comes(next, kubevirt.MigrationScheduled)
}
