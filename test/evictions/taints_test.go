//go:build !unit

package evictions

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// replacers starts the controller of taint replacement without leader election: it would
// have to wait for the Lease of an earlier test.
func replacers(t *testing.T, more ...string) *replica {
	t.Helper()
	return replicas(t, 1, append([]string{"--controllers=taint-replacement", "--leader-elect=false"}, more...)...)[0]
}

// leaves tells whether somebody has deleted the launcher pod. It may still be there,
// because no kubelet ends it.
func (v *vm) leaves() bool {
	v.Helper()
	p := rig.Find[corev1.Pod](v.Space, v.launcher())
	return p == nil || p.DeletionTimestamp != nil
}

// policy sets spec.taintReplacement of the policy, which is deleted when the test ends.
func policy(t *testing.T, replacement string) {
	t.Helper()
	shared.KubectlApply(t, `{"apiVersion":"vmgrace.io/v1alpha1","kind":"EvacuationPolicy","metadata":{"name":"default"},"spec":{"taintReplacement":`+replacement+`}}`)
	t.Cleanup(func() {
		_, _ = shared.TryKubectl(rig.After(t), "", "delete", "evacuationpolicy", "default", "--ignore-not-found")
	})
}

// policyStatus returns the status of the policy.
func policyStatus(t *testing.T) v1alpha1.EvacuationPolicyStatus {
	t.Helper()
	return rig.Read[v1alpha1.EvacuationPolicy](shared.In(t, ""), "default").Status
}

// newNode makes a node that is Ready.
func newNode(t *testing.T, name string) {
	t.Helper()
	shared.In(t, "").Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, rig.NodeReady)
}

// taint replaces the taints of a node by those with these keys, added now, or by none.
func taint(t *testing.T, node string, key ...string) {
	t.Helper()
	shared.In(t, "").Taint(node, key...)
}

// said returns the taint conditions of a VM, D for NodeTaintDetected and R for
// NodeTaintReplacing, and the reason of the latter.
func (v *vm) said() (conditions, why string) {
	v.Helper()
	vmi := v.get()
	if vmi.ConditionIs(kubevirt.NodeTaintDetected, "True") {
		conditions += "D"
	}
	if c := vmi.Condition(kubevirt.NodeTaintReplacing); c != nil && c.Status == "True" {
		conditions, why = conditions+"R", c.Reason
	}
	return conditions, why
}

func (v *vm) becomes(want string) {
	v.Helper()
	kit.Eventually(v, v.name+" says "+want, func() bool { got, _ := v.said(); return got == want })
}

func (v *vm) marked() bool {
	v.Helper()
	return v.get().Status.EvacuationNodeName != ""
}

func TestVMsLeaveATaintedNodeOneAfterTheOther(t *testing.T) {
	// Given a node, a VM on it and a policy.
	newNode(t, "node-tainted")
	r := replacers(t)
	first := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-tainted"})
	policy(t, `{"options":[{"key":"maint","durationInSeconds":2}],"taintReplacementTimeSeconds":2}`)
	from := time.Now().Truncate(time.Second)
	taint(t, "node-tainted", "maint")
	// When the node is tainted, then the VM has NodeTaintDetected at once and
	// NodeTaintReplacing later.
	first.becomes("D")
	second := newVM(t, vm{strategy: "None", node: "node-tainted"})
	stays := newVM(t, vm{strategy: "LiveMigrate", node: "node-tainted"})
	first.becomes("DR")
	if took := time.Since(from); took < 2*time.Second {
		t.Errorf("to be replaced after %v", took)
	}
	kit.Eventually(t, "it is marked", func() bool { return first.marked() })
	// The VM is marked with the cause, not earlier than the policy says.
	if took := time.Since(from); took < 4*time.Second {
		t.Errorf("marked after %v", took)
	}
	if got := evacuation.ExplanationOf(first.get()).Cause; got != "NodeTaint" {
		t.Errorf("cause %q", got)
	}
	// The second VM waits for the first, and the condition of the VM that can neither
	// be moved nor stopped says why.
	kit.Eventually(t, "the second waits", func() bool { _, why := second.said(); return why == "WaitsForItsTurn" })
	kit.Eventually(t, "the third says why", func() bool { _, why := stays.said(); return why == "NotMigratable" })
	// The policy's status lists all three.
	s := policyStatus(t)
	if len(s.VMIs) != 3 || s.VMIs[0].Name != first.name || s.VMIs[0].Reason != "InProgress" || s.VMIs[0].Taint != "maint:NoSchedule" || len(s.Taints) != 1 {
		t.Errorf("status: %+v", s)
	}
	if got := counted([]*replica{r}, "vmgrace_tainted_vmis", "NodeTaintReplacing"); got != 3 {
		t.Errorf("vmgrace_tainted_vmis counts %d", got)
	}
	// When the first has moved, then the second is evicted.
	first.delete()
	kit.Eventually(t, "the second's launcher is evicted", func() bool { return second.leaves() })
	if stays.marked() || stays.leaves() {
		t.Error("a VM that cannot be moved was marked or stopped")
	}
	// When the taint is removed, then its conditions and the status go.
	taint(t, "node-tainted")
	stays.becomes("")
	kit.Eventually(t, "the status is empty", func() bool { return len(policyStatus(t).VMIs) == 0 })
}

// Given a VM on a tainted node. When an operator asks kubectl for the policy or the VMI,
// then the answer has the VM, the node, the taint, since when the VM is to be replaced, and
// when that is due. Otherwise the operator would not know which VMs leave, and when.
func TestKubectlTellsWhichVMsLeaveATaintedNodeAndWhen(t *testing.T) {
	newNode(t, "node-told")
	replacers(t)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-told"})
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":3600}`)
	taint(t, "node-told", "maint")
	v.becomes("DR")
	kit.Eventually(t, "the status lists it as to be replaced", func() bool {
		s := policyStatus(t)
		return len(s.VMIs) == 1 && s.VMIs[0].Condition == kubevirt.NodeTaintReplacing && s.VMIs[0].Due != nil
	})
	is := policyStatus(t).VMIs[0]
	since, due := is.Since.UTC().Format(time.RFC3339), is.Due.UTC().Format(time.RFC3339)
	if took := is.Due.Sub(is.Since.Time); took != time.Hour {
		t.Errorf("due %v after it was to be replaced, want taintReplacementTimeSeconds", took)
	}
	for of, told := range map[string]string{
		"the policy": shared.Kubectl(t, "get", "evacuationpolicy", "default", "-o", "yaml"),
		"the VMI":    shared.Kubectl(t, "describe", "vmi", "-n", v.NS, v.name),
	} {
		for _, want := range []string{v.name, "node-told", "maint:NoSchedule", "NodeTaintReplacing", since, due} {
			if !strings.Contains(told, want) {
				t.Errorf("kubectl does not tell %q of %s:\n%s", want, of, told)
			}
		}
	}
}

func TestAReplacementGoesOnAfterARestart(t *testing.T) {
	newNode(t, "node-restart")
	r := replacers(t)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-restart"})
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":6}`)
	taint(t, "node-restart", "maint")
	v.becomes("DR")
	since := v.get().Condition(kubevirt.NodeTaintReplacing).LastTransitionTime
	r.Kill()
	replacers(t)
	kit.Eventually(t, "it is marked", func() bool { return v.marked() })
	if took := time.Since(since.Time); took > 12*time.Second {
		t.Errorf("marked %v after it said that it is to leave: the time began anew", took)
	}
	if now := v.get().Condition(kubevirt.NodeTaintReplacing).LastTransitionTime; !now.Equal(&since) {
		t.Errorf("to be replaced since %v, before the restart since %v", now, since)
	}
}

func TestWithManyTaintedNodesNobodyIsReplacedAndThatIsSaid(t *testing.T) {
	for _, n := range []string{"node-many-1", "node-many-2"} {
		newNode(t, n)
	}
	replacers(t)
	one, other := newVM(t, vm{strategy: "None", node: "node-many-1"}), newVM(t, vm{strategy: "None", node: "node-many-2"})
	// 5 s give kubectl time: it taints one node after the other.
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":5,"maxTaintedNodes":1}`)
	taint(t, "node-many-1", "other")
	taint(t, "node-many-2", "other")
	shared.Kubectl(t, "taint", "node", "node-many-1", "node-many-2", "maint=1:NoSchedule")
	for _, v := range []*vm{one, other} {
		kit.Eventually(t, v.name+" says why", func() bool { _, why := v.said(); return why == "TooManyTaintedNodes" })
	}
	kit.Eventually(t, "the policy says so", func() bool {
		for _, c := range policyStatus(t).Conditions {
			if c.Type == v1alpha1.ConditionTaintReplacement {
				return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "maxTaintedNodes allows 1")
			}
		}
		return false
	})
	if one.leaves() || other.leaves() {
		t.Error("one was evicted")
	}
	// When one node loses its taint, then the VM on the other node leaves.
	taint(t, "node-many-1")
	kit.Eventually(t, "the other's launcher is evicted", func() bool { return other.leaves() })
}

func TestWithoutTheRightToReadNodesEverythingElseWorks(t *testing.T) {
	const role = "vmgrace-cluster-controller"
	rules := shared.Kubectl(t, "get", "clusterrole", role, "-o", "json")
	var have struct {
		Rules []map[string]any `json:"rules"`
	}
	kit.Must(t, json.Unmarshal([]byte(rules), &have))
	var without []map[string]any
	for _, r := range have.Rules {
		if fmt.Sprint(r["resources"]) != "[nodes]" {
			without = append(without, r)
		}
	}
	text, err := json.Marshal(map[string]any{"rules": without})
	kit.Must(t, err)
	shared.Kubectl(t, "patch", "clusterrole", role, "--type=merge", "-p", string(text))
	t.Cleanup(func() {
		back, err := json.Marshal(map[string]any{"rules": have.Rules})
		if err == nil {
			_, err = shared.TryKubectl(rig.After(t), "", "patch", "clusterrole", role, "--type=merge", "-p", string(back))
		}
		if err != nil {
			t.Error(err)
		}
	})
	var all []*replica
	kit.Eventually(t, "the right is gone", func() bool {
		out, _ := shared.TryKubectl(t.Context(), "", "auth", "can-i", "list", "nodes", "--as=system:serviceaccount:"+rig.Ours+":cluster-controller")
		return strings.Contains(out, "no")
	})
	all = []*replica{replacers(t, "--controllers=evacuation,migration,disruption-budgets")}
	newNode(t, "node-unread")
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-unread"})
	v.budgetExists()
	if a := v.evict(); !strings.Contains(a.text, "Eviction triggered evacuation") {
		t.Errorf("%+v", a)
	}
	kit.Eventually(t, "a migration is made, and its target pod", func() bool {
		for _, m := range v.Migrations() {
			if m.Spec.VMIName == v.name {
				return shared.Kubectl(t, "get", "pods", "-n", v.NS, "-l", "kubevirt.io/migrationJobUID="+string(m.UID), "-o", "name") != ""
			}
		}
		return false
	})
	if counted(all, "vmgrace_nodes_readable") != 0 || !strings.Contains(rig.Fetch("http://"+all[0].metrics+"/metrics"), "vmgrace_nodes_readable 0") {
		t.Error("the metric does not say it")
	}
	if !strings.Contains(all[0].Log(), "nodes cannot be read") {
		t.Error("the log does not say it")
	}
	shared.Kubectl(t, "delete", "vmi", "-n", v.NS, v.name)
	shared.Kubectl(t, "delete", "vmim", "-n", v.NS, "--all", "--timeout=30s") // the controller still runs and removes its finalizer
}

func (v *vm) budgetExists() {
	v.Helper()
	kit.Eventually(v, "a budget", func() bool { return v.readBudget() != nil })
}

// readBudget returns the VM's budget, nil where it has none.
func (v *vm) readBudget() *policyv1.PodDisruptionBudget {
	v.Helper()
	return rig.Find[policyv1.PodDisruptionBudget](v.Space, "kubevirt-disruption-budget-"+v.uid)
}
