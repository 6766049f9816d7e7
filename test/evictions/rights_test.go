//go:build !unit

package evictions

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

// right is one verb for one kind, as a rule of a role grants it.
type right struct{ verb, resource string }

func (r right) String() string { return r.verb + " " + r.resource }

func resourceOf(group, resource, subresource string) string {
	if subresource != "" {
		resource += "/" + subresource
	}
	if group != "" {
		resource += "." + group
	}
	return resource
}

// asked returns what cluster-controller has asked for since the test run began, by
// namespace or "", and the requests that the API server has refused.
func asked(t *testing.T) (granted map[string]map[right]bool, refused []string) {
	t.Helper()
	f, err := os.Open(shared.audit)
	kit.Must(t, err)
	defer f.Close()
	granted = map[string]map[right]bool{rig.Ours: {}, "": {}}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb      string
			ObjectRef *struct{ Resource, Subresource, APIGroup, Namespace, Name string }
			Response  struct{ Code int } `json:"responseStatus"`
		}
		kit.Must(t, json.Unmarshal(lines.Bytes(), &e))
		if e.ObjectRef == nil {
			continue // no object: discovery
		}
		r := right{e.Verb, resourceOf(e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Subresource)}
		where := ""
		if e.ObjectRef.Namespace == rig.Ours {
			where = rig.Ours
		}
		if e.Response.Code == http.StatusForbidden {
			refused = append(refused, fmt.Sprintf("%s %s/%s", r, e.ObjectRef.Namespace, e.ObjectRef.Name))
		}
		granted[where][r] = true
	}
	kit.Must(t, lines.Err())
	return granted, refused
}

func given(rules []rbacv1.PolicyRule) map[right]bool {
	all := map[right]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				kind, sub, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					if verb == "list" && slices.Contains(rule.Verbs, "watch") {
						continue // for API servers whose watch cannot begin with the existing objects
					}
					all[right{verb, resourceOf(group, kind, sub)}] = true
				}
			}
		}
	}
	return all
}

// Given the shipped roles. When webhooks, budgets, evacuation and taint replacement have
// done once all that they do, then the API server's audit log has a use of each right and
// no refused request. A missing right would break a function in a user's cluster, and an
// unused right would only help an attacker.
func TestEachRightIsUsedAndNoneIsMissing(t *testing.T) {
	shared.Kubectl(t, "delete", "secret,lease", "-n", rig.Ours, "vmgrace-cluster-controller", "--ignore-not-found")
	all := replicas(t, 1, "--controllers=disruption-budgets,evacuation,taint-replacement,estimate", "--certificate-validity=15s")
	const nodeName = "node-rights"
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: corev1.NodeSpec{Unschedulable: true}}
	shared.In(t, "").Make(n, rig.NodeReady)

	// A drain by the descheduler: budget, mark, migration, and annotations.
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: nodeName})
	v.budgetExists()
	if a := v.evict(func(e *policyv1.Eviction) {
		e.Annotations = map[string]string{"requested-by": "sigs.k8s.io/descheduler"}
	}); a.code != 429 {
		t.Fatalf("%+v", a)
	}
	kit.Eventually(t, "a migration", func() bool { return len(v.Migrations()) == 1 })
	// Somebody edits the budget.
	v.Change(v.readBudget(), `{"spec":{"minAvailable":0}}`)
	kit.Eventually(t, "the budget is put right", func() bool { b := v.readBudget(); return b != nil && b.Spec.MinAvailable.IntValue() == 1 })
	// The drain is called off.
	v.Change(n, `{"spec":{"unschedulable":null,"taints":null}}`)
	kit.Eventually(t, "the mark and the migration go", func() bool { return v.get().Status.EvacuationNodeName == "" && len(v.Migrations()) == 0 })
	// The VM needs no budget any more.
	v.Change(v.get(), `{"spec":{"evictionStrategy":"None"}}`)
	kit.Eventually(t, "the budget goes", func() bool { return v.readBudget() == nil })
	// The VM's node is tainted: an eviction stops the VM.
	policy(t, `{"options":[{"key":"rights","durationInSeconds":0}],"taintReplacementTimeSeconds":0,"maxTaintedNodes":9}`)
	v.Taint(nodeName, "rights")
	kit.Eventually(t, "its launcher is evicted", func() bool { return v.leaves() })
	// An orphan is evicted, and an Event is repeated.
	orphan := newVM(t, vm{strategy: "LiveMigrate"})
	orphan.delete()
	if a := orphan.evict(); a.code != 0 {
		t.Errorf("%+v", a)
	}
	odd := newVM(t, vm{strategy: "Sometimes"})
	for range 3 {
		odd.evict(func(e *policyv1.Eviction) { e.Name = odd.launcher() })
		odd.again()
	}
	// The certificate is renewed.
	const name = "vmgrace-cluster-controller"
	its := shared.In(t, rig.Ours)
	was := rig.Read[corev1.Secret](its, name).ResourceVersion
	kit.Eventually(t, "a renewal", func() bool { return rig.Read[corev1.Secret](its, name).ResourceVersion != was })
	all[0].Kill() // the audit log gets a watch only when it ends

	role, clusterRole := rig.Read[rbacv1.Role](its, name), rig.Read[rbacv1.ClusterRole](its, name)
	var unused []string
	if !node.Poll(t.Context(), soon, func() bool {
		unused = nil
		used, refused := asked(t)
		if len(refused) > 0 {
			t.Fatalf("refused: %v", refused)
		}
		for r := range given(clusterRole.Rules) {
			if !used[""][r] {
				unused = append(unused, "ClusterRole: "+r.String())
			}
		}
		for r := range given(role.Rules) {
			if !used[rig.Ours][r] {
				unused = append(unused, "Role: "+r.String())
			}
		}
		return len(unused) == 0
	}) {
		slices.Sort(unused)
		t.Errorf("not used: %v", unused)
	}
}
