//go:build !unit

package migrations

import (
	"context"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given a Node with what others have written. When its agent writes anything but the one
// label, or another agent writes that, then the policy refuses it. Otherwise one compromised
// node could taint, cordon or relabel all others.
func TestAnAgentLabelsItsOwnNodeAndNothingElse(t *testing.T) {
	ctx := t.Context()
	own := shared.agents["node-a"]
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	admin := func(patch string) { kit.Must(t, shared.Patch(ctx, n.DeepCopy(), rig.Merge("%s", patch))) }
	admin(`{"metadata":{"labels":{"rack":"7"},"annotations":{"of.the/owner":"kept"}}}`)
	t.Cleanup(func() { // others use this node, too
		kit.Must(t, shared.Patch(context.Background(), n.DeepCopy(), rig.Merge(`{"metadata":{"labels":{"rack":null,"vmgrace.io/takes-migrations":null},"annotations":{"of.the/owner":null}}}`)))
	})
	try := func(as client.Client, patch string) error { return as.Patch(ctx, n.DeepCopy(), rig.Merge("%s", patch)) }
	const set, unset = `{"metadata":{"labels":{"vmgrace.io/takes-migrations":"true"}}}`, `{"metadata":{"labels":{"vmgrace.io/takes-migrations":null}}}`

	nowhere, err := agentOf(ctx, nil)
	kit.Must(t, err)
	refused(t, "by another node's agent", try(shared.agents["node-b"], set))
	refused(t, "with a token without a node", try(nowhere, set))
	before := rig.Read[corev1.Node](shared.In(t, ""), "node-a")
	for what, patch := range map[string]string{
		"another label":         `{"metadata":{"labels":{"vmgrace.io/takes-migrations":"true","gpu":"yes"}}}`,
		"another value":         `{"metadata":{"labels":{"vmgrace.io/takes-migrations":"false"}}}`,
		"a changed label":       `{"metadata":{"labels":{"rack":"8"}}}`,
		"a removed label":       `{"metadata":{"labels":{"rack":null}}}`,
		"all labels":            `{"metadata":{"labels":null}}`,
		"an annotation":         `{"metadata":{"annotations":{"vmgrace.io/fenced":"x"}}}`,
		"a removed annotation":  `{"metadata":{"annotations":null}}`,
		"a finalizer":           `{"metadata":{"finalizers":["a.b/c"]}}`,
		"a taint":               `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`,
		"a cordon":              `{"spec":{"unschedulable":true}}`,
		"a taint and the label": `{"metadata":{"labels":{"vmgrace.io/takes-migrations":"true"}},"spec":{"taints":[{"key":"mine","effect":"NoSchedule"}]}}`,
	} {
		refused(t, what, try(own, patch))
	}
	// Admission of the API server may refuse this before the policy does.
	if err := try(own, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-b","uid":"u"}]}}`); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("an owner: %v", err)
	}
	kit.Must(t, try(own, set))
	kit.Must(t, try(own, set)) // again, as it is
	is := rig.Read[corev1.Node](shared.In(t, ""), "node-a")
	want := maps.Clone(before.Labels)
	want["vmgrace.io/takes-migrations"] = "true"
	if !maps.Equal(is.Labels, want) || is.Annotations["of.the/owner"] != "kept" || len(is.Spec.Taints) != len(before.Spec.Taints) {
		t.Errorf("%+v", is)
	}
	admin(`{"metadata":{"labels":{"vmgrace.io/takes-migrations":"false"}}}`)
	kit.Must(t, try(own, set)) // put right
	kit.Must(t, try(own, unset))
	if is := rig.Read[corev1.Node](shared.In(t, ""), "node-a"); !maps.Equal(is.Labels, before.Labels) {
		t.Errorf("labels %v", is.Labels)
	}
}

// Given agents that RBAC gives more rights to Nodes than shipped, as a cluster's own role may.
// Then the policy still refuses what is no label.
func TestAnAgentWithMoreRightsChangesNoNodeEither(t *testing.T) {
	ctx := t.Context()
	meta := metav1.ObjectMeta{Name: "more-of-nodes"}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Verbs: []string{"create", "patch", "delete"}}}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "node-agent", Namespace: rig.Ours}}}
	for _, o := range []client.Object{role, binding} {
		kit.Must(t, shared.Create(ctx, o))
		t.Cleanup(func() { kit.Must(t, shared.Delete(context.Background(), o)) })
	}
	own, n := shared.agents["node-a"], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	for what, try := range map[string]func() error{
		"its status": func() error {
			return own.Status().Patch(ctx, n.DeepCopy(), rig.Merge(`{"status":{"conditions":[{"type":"x","status":"True"}]}}`))
		},
		"another Node": func() error { return own.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-z"}}) },
		"its deletion": func() error { return own.Delete(ctx, n.DeepCopy()) },
	} {
		kit.Eventually(t, what+" is refused by the policy", func() bool { // by RBAC at first
			err := try()
			return err != nil && strings.Contains(err.Error(), "nothing else of it")
		})
	}
}
