//go:build !unit

package evictions

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// withAudit has the API server note what cluster-controller asks of it.
func withAudit(run func(flags ...string) int) int {
	dir, err := os.MkdirTemp("", "vmgrace-evictions-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		shared.audit = filepath.Join(dir, "audit.log")
		err = os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(`
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - {level: Metadata, users: ["system:serviceaccount:`+ours+`:cluster-controller"]}
  - {level: None}
`), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run("--audit-policy-file="+filepath.Join(dir, "policy.yaml"), "--audit-log-path="+shared.audit)
}

// right is as a rule of a role has it, for one kind and one verb.
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

// asked is what cluster-controller has asked for since the test run began, by
// namespace or "", and whether it was refused.
func asked(t *testing.T) (granted map[string]map[right]bool, refused []string) {
	t.Helper()
	f, err := os.Open(shared.audit)
	kit.Must(t, err)
	defer f.Close()
	granted = map[string]map[right]bool{ours: {}, "": {}}
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
			continue // what the API server has
		}
		r := right{e.Verb, resourceOf(e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Subresource)}
		where := ""
		if e.ObjectRef.Namespace == ours {
			where = ours
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
						continue // for API servers that cannot begin a watch with what there is
					}
					all[right{verb, resourceOf(group, kind, sub)}] = true
				}
			}
		}
	}
	return all
}

// Everything that webhooks, budgets and evacuation do, once; then the API
// server's own log is compared with the roles as shipped.
func TestEachRightIsUsedAndNoneIsMissing(t *testing.T) {
	shared.api.Kubectl(t, "delete", "secret,lease", "-n", ours, "vmgrace-cluster-controller", "--ignore-not-found")
	all := replicas(t, 1, "--controllers=disruption-budgets,evacuation,taint-replacement", "--certificate-validity=15s")
	const nodeName = "node-rights"
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: corev1.NodeSpec{Unschedulable: true}}
	kit.Must(t, shared.objects.Create(t.Context(), n))
	t.Cleanup(func() { _ = shared.objects.Delete(contextOf(t), n) })
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	kit.Must(t, shared.objects.Status().Update(t.Context(), n))

	// A drain: budget, mark, migration, and the descheduler's annotations.
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: nodeName})
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: "kubevirt-disruption-budget-" + v.uid}}
	there := func(o client.Object) bool {
		return shared.objects.Get(t.Context(), client.ObjectKeyFromObject(o), o) == nil
	}
	kit.Eventually(t, "a budget", func() bool { return there(pdb) })
	if a := v.evict(t, nil); a.code != 429 {
		t.Fatalf("%+v", a)
	}
	migrations := func() int {
		var all kubevirt.VirtualMachineInstanceMigrationList
		kit.Must(t, shared.objects.List(t.Context(), &all))
		return len(all.Items)
	}
	kit.Eventually(t, "a migration", func() bool { return migrations() == 1 })
	// A hand on the budget.
	kit.Must(t, shared.objects.Patch(t.Context(), pdb, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"minAvailable":0}}`))))
	kit.Eventually(t, "the budget is put right", func() bool { return there(pdb) && pdb.Spec.MinAvailable.IntValue() == 1 })
	// It is called off.
	kit.Must(t, shared.objects.Patch(t.Context(), n, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":null,"taints":null}}`))))
	kit.Eventually(t, "the mark and the migration go", func() bool { return v.get(t).Status.EvacuationNodeName == "" && migrations() == 0 })
	// It needs no budget any more.
	kit.Must(t, shared.objects.Patch(t.Context(), v.get(t), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"evictionStrategy":"None"}}`))))
	kit.Eventually(t, "the budget goes", func() bool { return !there(pdb) })
	// Its node is tainted: it is stopped, by an eviction.
	policy(t, `{"options":[{"key":"rights","durationInSeconds":0}],"taintReplacementTimeSeconds":0,"maxTaintedNodes":9}`)
	taint(t, nodeName, "rights")
	kit.Eventually(t, "its launcher is evicted", func() bool { return v.leaves(t) })
	// An orphan, and an Event that is told again.
	orphan := newVM(t, vm{strategy: "LiveMigrate"})
	kit.Must(t, shared.objects.Delete(t.Context(), orphan.get(t)))
	if a := orphan.evict(t, nil); a.code != 0 {
		t.Errorf("%+v", a)
	}
	odd := newVM(t, vm{strategy: "Sometimes"})
	for range 3 {
		odd.evict(t, func(e *policyv1.Eviction) { e.Name = odd.launcher() })
		odd.again(t)
	}
	// A renewal.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: "vmgrace-cluster-controller"}}
	kit.Must(t, shared.objects.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	was := secret.ResourceVersion
	kit.Eventually(t, "a renewal", func() bool { return there(secret) && secret.ResourceVersion != was })
	all[0].Kill() // watches are noted when they end

	var role rbacv1.Role
	var clusterRole rbacv1.ClusterRole
	const name = "vmgrace-cluster-controller"
	kit.Must(t, shared.objects.Get(t.Context(), client.ObjectKey{Namespace: ours, Name: name}, &role))
	kit.Must(t, shared.objects.Get(t.Context(), client.ObjectKey{Name: name}, &clusterRole))
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
			if !used[ours][r] {
				unused = append(unused, "Role: "+r.String())
			}
		}
		return len(unused) == 0
	}) {
		slices.Sort(unused)
		t.Errorf("not used: %v", unused)
	}
}
