//go:build !unit

package evictions

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/test/kit"
)

// replacers run the controller at once: they wait for no Lease of an earlier test's.
func replacers(t *testing.T, more ...string) *replica {
	t.Helper()
	return replicas(t, 1, append([]string{"--controllers=taint-replacement", "--leader-elect=false"}, more...)...)[0]
}

// leaves tells whether somebody has the launcher deleted; no kubelet lets it go.
func (v *vm) leaves(t *testing.T) bool {
	t.Helper()
	return !v.podThere(t) || shared.api.Kubectl(t, "get", "pod", "-n", v.namespace, v.launcher(), "-o", "jsonpath={.metadata.deletionTimestamp}") != ""
}

// policy sets spec.taintReplacement; it is taken away when the test ends.
func policy(t *testing.T, replacement string) {
	t.Helper()
	shared.api.KubectlApply(t, `{"apiVersion":"vmgrace.io/v1alpha1","kind":"EvacuationPolicy","metadata":{"name":"default"},"spec":{"taintReplacement":`+replacement+`}}`)
	t.Cleanup(func() {
		_, _ = shared.api.TryKubectl(contextOf(t), "", "delete", "evacuationpolicy", "default", "--ignore-not-found")
	})
}

// policyStatus is what the policy says.
func policyStatus(t *testing.T) (s v1alpha1.EvacuationPolicyStatus) {
	t.Helper()
	text := shared.api.Kubectl(t, "get", "evacuationpolicy", "default", "-o", "jsonpath={.status}")
	if text != "" {
		kit.Must(t, json.Unmarshal([]byte(text), &s))
	}
	return s
}

// newNode makes a node that is Ready.
func newNode(t *testing.T, name string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	kit.Must(t, shared.objects.Create(t.Context(), n))
	t.Cleanup(func() {
		_ = shared.objects.Delete(contextOf(t), n)
		_, _ = shared.api.TryKubectl(contextOf(t), "", "delete", "vmi", "-A", "-l", "kubevirt.io/nodeName="+name)
	})
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	kit.Must(t, shared.objects.Status().Update(t.Context(), n))
}

// taint gives a node one taint, now; "" takes it.
func taint(t *testing.T, node, key string) {
	t.Helper()
	taints := "null"
	if key != "" {
		taints = fmt.Sprintf(`[{"key":%q,"effect":"NoSchedule","timeAdded":%q}]`, key, time.Now().UTC().Format(time.RFC3339))
	}
	shared.api.Kubectl(t, "patch", "node", node, "--type=merge", "-p", `{"spec":{"taints":`+taints+`}}`)
}

// said are the taint conditions of a VM: D and R.
func (v *vm) said(t *testing.T) (conditions, why string) {
	t.Helper()
	vmi := v.get(t)
	if vmi.ConditionIs(kubevirt.NodeTaintDetected, "True") {
		conditions += "D"
	}
	if c := vmi.Condition(kubevirt.NodeTaintReplacing); c != nil && c.Status == "True" {
		conditions, why = conditions+"R", c.Reason
	}
	return conditions, why
}

func (v *vm) becomes(t *testing.T, want string) {
	t.Helper()
	kit.Eventually(t, v.name+" says "+want, func() bool { got, _ := v.said(t); return got == want })
}

func (v *vm) marked(t *testing.T) bool {
	t.Helper()
	return v.get(t).Status.EvacuationNodeName != ""
}

func TestVMsLeaveATaintedNodeOneAfterTheOther(t *testing.T) {
	// Given
	newNode(t, "node-tainted")
	r := replacers(t)
	first := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-tainted"})
	policy(t, `{"options":[{"key":"maint","durationInSeconds":2}],"taintReplacementTimeSeconds":2}`)
	from := time.Now().Truncate(time.Second)
	taint(t, "node-tainted", "maint")
	// When its node is tainted, the VM says so at once, later that it is to leave,
	first.becomes(t, "D")
	second := newVM(t, vm{strategy: "None", node: "node-tainted"})
	stays := newVM(t, vm{strategy: "LiveMigrate", node: "node-tainted"})
	first.becomes(t, "DR")
	if took := time.Since(from); took < 2*time.Second {
		t.Errorf("to be replaced after %v", took)
	}
	kit.Eventually(t, "it is marked", func() bool { return first.marked(t) })
	// then it is marked, with the cause, not earlier than asked for,
	if took := time.Since(from); took < 4*time.Second {
		t.Errorf("marked after %v", took)
	}
	if got := first.get(t).Annotations["vmgrace.io/evacuation-cause"]; got != "NodeTaint" {
		t.Errorf("cause %q", got)
	}
	// the next one waits for it, one that can neither be moved nor stopped is named,
	kit.Eventually(t, "the second waits", func() bool { _, why := second.said(t); return why == "WaitsForItsTurn" })
	kit.Eventually(t, "the third says why", func() bool { _, why := stays.said(t); return why == "NotMigratable" })
	// and all of it is in the policy's status.
	s := policyStatus(t)
	if len(s.VMIs) != 3 || s.VMIs[0].Name != first.name || s.VMIs[0].Reason != "InProgress" || s.VMIs[0].Taint != "maint:NoSchedule" || len(s.Taints) != 1 {
		t.Errorf("status: %+v", s)
	}
	if got := counted([]*replica{r}, "vmgrace_tainted_vmis", "NodeTaintReplacing"); got != 3 {
		t.Errorf("vmgrace_tainted_vmis counts %d", got)
	}
	// When the first has moved, the second is evicted.
	kit.Must(t, shared.objects.Delete(t.Context(), first.get(t)))
	kit.Eventually(t, "the second's launcher is evicted", func() bool { return second.leaves(t) })
	if stays.marked(t) || stays.leaves(t) {
		t.Error("a VM that cannot be moved was marked or stopped")
	}
	// When the taint goes, nothing is left of it.
	taint(t, "node-tainted", "")
	stays.becomes(t, "")
	kit.Eventually(t, "the status is empty", func() bool { return len(policyStatus(t).VMIs) == 0 })
}

// An operator asks which VMs are on tainted nodes, since when, and when they go.
func TestKubectlTellsWhichVMsLeaveATaintedNodeAndWhen(t *testing.T) {
	newNode(t, "node-told")
	replacers(t)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-told"})
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":3600}`)
	taint(t, "node-told", "maint")
	v.becomes(t, "DR")
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
		"the policy": shared.api.Kubectl(t, "get", "evacuationpolicy", "default", "-o", "yaml"),
		"the VMI":    shared.api.Kubectl(t, "describe", "vmi", "-n", v.namespace, v.name),
	} {
		for _, want := range []string{v.name, "node-told", "maint:NoSchedule", "NodeTaintReplacing", since, due} {
			if !strings.Contains(told, want) {
				t.Errorf("kubectl does not tell %q of %s:\n%s", want, of, told)
			}
		}
	}
}

func TestATaintThatGoesInTimeMovesNobodyAndTakesItsMarkBack(t *testing.T) {
	newNode(t, "node-taint-goes")
	replacers(t)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-taint-goes"})
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":3}`)
	taint(t, "node-taint-goes", "maint")
	v.becomes(t, "DR")
	taint(t, "node-taint-goes", "")
	v.becomes(t, "")
	// A flap starts the clock anew.
	taint(t, "node-taint-goes", "maint")
	again := time.Now()
	kit.Eventually(t, "it is marked", func() bool { return v.marked(t) })
	if took := time.Since(again); took < 2*time.Second {
		t.Errorf("marked after %v: the former taint's time was counted", took)
	}
	taint(t, "node-taint-goes", "")
	kit.Eventually(t, "the mark is taken back", func() bool { return !v.marked(t) })
}

func TestAReplacementGoesOnAfterARestart(t *testing.T) {
	newNode(t, "node-restart")
	r := replacers(t)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-restart"})
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":6}`)
	taint(t, "node-restart", "maint")
	v.becomes(t, "DR")
	since := v.get(t).Condition(kubevirt.NodeTaintReplacing).LastTransitionTime
	r.Kill()
	replacers(t)
	kit.Eventually(t, "it is marked", func() bool { return v.marked(t) })
	if took := time.Since(since.Time); took > 12*time.Second {
		t.Errorf("marked %v after it said that it is to leave: the time began anew", took)
	}
	if now := v.get(t).Condition(kubevirt.NodeTaintReplacing).LastTransitionTime; !now.Equal(&since) {
		t.Errorf("to be replaced since %v, before the restart since %v", now, since)
	}
}

func TestWithManyTaintedNodesNobodyIsReplacedAndThatIsSaid(t *testing.T) {
	for _, n := range []string{"node-many-1", "node-many-2"} {
		newNode(t, n)
	}
	replacers(t)
	one, other := newVM(t, vm{strategy: "None", node: "node-many-1"}), newVM(t, vm{strategy: "None", node: "node-many-2"})
	// Time for kubectl, which taints one node after the other.
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":5,"maxTaintedNodes":1}`)
	taint(t, "node-many-1", "other")
	taint(t, "node-many-2", "other")
	shared.api.Kubectl(t, "taint", "node", "node-many-1", "node-many-2", "maint=1:NoSchedule")
	for _, v := range []*vm{one, other} {
		kit.Eventually(t, v.name+" says why", func() bool { _, why := v.said(t); return why == "TooManyTaintedNodes" })
	}
	kit.Eventually(t, "the policy says so", func() bool {
		for _, c := range policyStatus(t).Conditions {
			if c.Type == v1alpha1.ConditionTaintReplacement {
				return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "maxTaintedNodes allows 1")
			}
		}
		return false
	})
	if one.leaves(t) || other.leaves(t) {
		t.Error("one was evicted")
	}
	// When one of the taints goes, the other one's VM leaves.
	taint(t, "node-many-1", "")
	kit.Eventually(t, "the other's launcher is evicted", func() bool { return other.leaves(t) })
}

func TestAWholeTolerationKeepsAVMWhereItIs(t *testing.T) {
	newNode(t, "node-tolerated")
	replacers(t)
	v := newVM(t, vm{strategy: "None", node: "node-tolerated"})
	other := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-tolerated"})
	v.changePod(t, `{"spec":{"tolerations":[{"key":"maint","operator":"Exists"}]}}`)
	policy(t, `{"options":[{"key":"maint","durationInSeconds":0}],"taintReplacementTimeSeconds":0}`)
	taint(t, "node-tolerated", "maint")
	kit.Eventually(t, "the other one is marked", func() bool { return other.marked(t) })
	if got, _ := v.said(t); got != "" || v.leaves(t) {
		t.Errorf("a VM that tolerates the taint says %q", got)
	}
}

func TestWithoutTheRightToReadNodesEverythingElseWorks(t *testing.T) {
	const role = "vmgrace-cluster-controller"
	rules := shared.api.Kubectl(t, "get", "clusterrole", role, "-o", "json")
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
	shared.api.Kubectl(t, "patch", "clusterrole", role, "--type=merge", "-p", string(text))
	t.Cleanup(func() {
		back, err := json.Marshal(map[string]any{"rules": have.Rules})
		if err == nil {
			_, err = shared.api.TryKubectl(contextOf(t), "", "patch", "clusterrole", role, "--type=merge", "-p", string(back))
		}
		if err != nil {
			t.Error(err)
		}
	})
	var all []*replica
	kit.Eventually(t, "the right is gone", func() bool {
		out, _ := shared.api.TryKubectl(t.Context(), "", "auth", "can-i", "list", "nodes", "--as=system:serviceaccount:"+ours+":cluster-controller")
		return strings.Contains(out, "no")
	})
	all = []*replica{replacers(t, "--controllers=evacuation,migration,disruption-budgets")}
	newNode(t, "node-unread")
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-unread"})
	v.budgetExists(t)
	if a := v.evict(t, nil); !strings.Contains(a.text, "Eviction triggered evacuation") {
		t.Errorf("%+v", a)
	}
	kit.Eventually(t, "a migration is made, and its target pod", func() bool {
		var m kubevirt.VirtualMachineInstanceMigrationList
		kit.Must(t, shared.objects.List(t.Context(), &m, client.InNamespace(v.namespace)))
		for i := range m.Items {
			if m.Items[i].Spec.VMIName == v.name {
				return shared.api.Kubectl(t, "get", "pods", "-n", v.namespace, "-l", "kubevirt.io/migrationJobUID="+string(m.Items[i].UID), "-o", "name") != ""
			}
		}
		return false
	})
	if counted(all, "vmgrace_nodes_readable") != 0 || !strings.Contains(fetch("http://"+all[0].metrics+"/metrics"), "vmgrace_nodes_readable 0") {
		t.Error("the metric does not say it")
	}
	if !strings.Contains(all[0].Log(), "nodes cannot be read") {
		t.Error("the log does not say it")
	}
	shared.api.Kubectl(t, "delete", "vmi", "-n", v.namespace, v.name)
	shared.api.Kubectl(t, "delete", "vmim", "-n", v.namespace, "--all", "--timeout=30s") // who has a finalizer in them still runs
}

func (v *vm) budgetExists(t *testing.T) {
	t.Helper()
	kit.Eventually(t, "a budget", func() bool {
		return shared.api.Kubectl(t, "get", "pdb", "-n", v.namespace, "kubevirt-disruption-budget-"+v.uid, "--ignore-not-found", "-o", "name") != ""
	})
}
