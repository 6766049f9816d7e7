package deploy

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// foreignCRD is the CRD that KubeVirt's operator makes, reduced to what matters here.
const foreignCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: virtualmachineinstances.kubevirt.io
  labels: {app.kubernetes.io/managed-by: virt-operator, app.kubernetes.io/component: kubevirt, kubevirt.io: ""}
spec:
  group: kubevirt.io
  scope: Namespaced
  names: {plural: virtualmachineinstances, singular: virtualmachineinstance, kind: VirtualMachineInstance, listKind: VirtualMachineInstanceList, shortNames: [vmi, vmis]}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

const oneVMI = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: kept, namespace: default}
spec: {terminationGracePeriodSeconds: 30}
`

// everything returns the state that the manifests must not change: the CRDs and VMIs as the
// API server stores them, with their versions.
func everything(t *testing.T, api *cluster.API) string {
	t.Helper()
	return api.Kubectl(t, "get", "crd", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.resourceVersion} {.metadata.deletionTimestamp}{"\n"}{end}`) +
		api.Kubectl(t, "get", "vmi", "-A", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.resourceVersion} {.metadata.deletionTimestamp}{"\n"}{end}`)
}

func given(t *testing.T, api *cluster.API, crd string) {
	t.Helper()
	api.KubectlApply(t, crd)
	api.Kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd/virtualmachineinstances.kubevirt.io")
	api.KubectlApply(t, oneVMI)
}

func TestTheCRDsOfKubeVirtAreNeitherReplacedNorDeleted(t *testing.T) {
	// An earlier vmgrace may have put its label on the CRD before the operator took the CRD
	// back.
	labelled := strings.Replace(foreignCRD, "labels: {", "labels: {app.kubernetes.io/part-of: vmgrace, ", 1)
	unlabelled := strings.Replace(foreignCRD, "app.kubernetes.io/managed-by: virt-operator, ", "", 1)
	api := cluster.NewAPI(t)
	for _, crd := range []string{foreignCRD, labelled, unlabelled} {
		given(t, api, crd)
		before := everything(t, api)
		for _, verb := range []string{"apply", "delete"} {
			out, err := api.Script(t.Context(), root+"deploy/crds/run", verb)
			if err == nil || !strings.Contains(out, "refused, nothing was changed: virtualmachineinstances.kubevirt.io is not vmgrace's") {
				t.Errorf("run %s: %v, %s", verb, err, out)
			}
		}
		if after := everything(t, api); after != before {
			t.Errorf("changed:\n%s\nwas\n%s", after, before)
		}
	}
}

func TestOurCRDsGoOnlyWhenNoVMIIsLeft(t *testing.T) {
	api := cluster.NewAPI(t)
	run := func(verb string) (string, error) { return api.Script(t.Context(), root+"deploy/crds/run", verb) }
	for range 2 { // the second apply is an update
		if out, err := run("apply"); err != nil {
			t.Fatal(err, out)
		}
	}
	api.KubectlApply(t, oneVMI)
	before := everything(t, api)
	if out, err := run("delete"); err == nil || !strings.Contains(out, "1 VMIs would be deleted") {
		t.Errorf("run delete with a VMI: %v, %s", err, out)
	}
	if after := everything(t, api); after != before {
		t.Errorf("changed:\n%s\nwas\n%s", after, before)
	}
	api.Kubectl(t, "delete", "vmi", "kept")
	for range 2 {
		if out, err := run("delete"); err != nil && !strings.Contains(out, "NotFound") {
			t.Error(err, out)
		}
	}
	if left := api.Kubectl(t, "get", "crd", "-o", "name"); left != "" {
		t.Errorf("still there: %s", left)
	}
}

// Given a migration with the finalizer of a controller that is gone, then the CRDs stay: the API
// server would wait for ever for what nobody removes.
func TestOurCRDsGoOnlyWhenEveryMigrationHasEnded(t *testing.T) {
	api := cluster.NewAPI(t)
	run := func(verb string) (string, error) { return api.Script(t.Context(), root+"deploy/crds/run", verb) }
	if out, err := run("apply"); err != nil {
		t.Fatal(err, out)
	}
	api.KubectlApply(t, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: unfinished, namespace: default, finalizers: [`+migration.Finalizer+`]}
spec: {vmiName: gone}
`)
	before := everything(t, api)
	if out, err := run("delete"); err == nil || !strings.Contains(out, "have a finalizer") || !strings.Contains(out, "default/unfinished") {
		t.Errorf("run delete with an unfinished migration: %v, %s", err, out)
	}
	if after := everything(t, api); after != before {
		t.Errorf("changed:\n%s\nwas\n%s", after, before)
	}
	api.Kubectl(t, "patch", "vmim", "unfinished", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	if out, err := run("delete"); err != nil {
		t.Error(err, out)
	}
}

func TestARunWithoutAnAnswerChangesNothing(t *testing.T) {
	api := cluster.NewAPI(t)
	nobody := api.As(t, "jane") // jane has no rights at all
	for _, verb := range []string{"apply", "delete"} {
		if out, err := nobody.Script(t.Context(), root+"deploy/crds/run", verb); err == nil || strings.Count(out, "forbidden") != 1 {
			t.Errorf("run %s went on: %v, %s", verb, err, out)
		}
	}
}

func TestTakingVMGraceAwayTakesNoVMAlong(t *testing.T) {
	api := cluster.NewAPI(t)
	given(t, api, foreignCRD)
	before := everything(t, api)
	api.Kubectl(t, "apply", "-k", root+"deploy")
	// A VMI in the agents' namespace would be deleted with the namespace, so a quota
	// refuses it. This sets the quota's status as kube-controller-manager does.
	api.Kubectl(t, "patch", "quota", "no-vms", "-n", "vmgrace-system", "--subresource=status", "--type=merge", "-p",
		`{"status":{"hard":{"count/virtualmachineinstances.kubevirt.io":"0"},"used":{"count/virtualmachineinstances.kubevirt.io":"0"}}}`)
	inAgents := strings.Replace(oneVMI, "namespace: default", "namespace: vmgrace-system", 1)
	node.Eventually(t, 20*time.Second, func() bool {
		_, err := api.TryKubectl(t.Context(), inAgents, "create", "--dry-run=server", "-f", "-")
		return err != nil && strings.Contains(err.Error(), "quota")
	}, "a VMI in the agents' namespace is refused")
	api.Kubectl(t, "delete", "--wait=false", "-k", root+"deploy")
	unchanged(t, api, before)
}

// unchanged waits until the API server has removed vmgrace's own CRD, and fails the test
// where anything else has changed.
func unchanged(t *testing.T, api *cluster.API, before string) {
	t.Helper()
	after := ""
	if !node.Poll(t.Context(), time.Minute, func() bool { after = everything(t, api); return after == before }) {
		t.Errorf("changed:\n%s\nwas\n%s", after, before)
	}
}

// Given agents and a controller. When the controller's manifests are deleted, then the
// agents and their namespace stay. Otherwise VMs would no longer be guarded.
func TestTakingTheControllerAwayLeavesTheAgents(t *testing.T) {
	const kept = `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.deletionTimestamp}{"\n"}{end}`
	for _, dir := range []string{"deploy/controller", "deploy/beside-kubevirt/controller"} {
		api := cluster.NewAPI(t)
		given(t, api, foreignCRD)
		api.Kubectl(t, "apply", "-k", root+"deploy/daemonset")
		agents := func() string {
			return api.Kubectl(t, "get", "-n", "vmgrace-system", "ds,sa,quota,roles", "-o", kept) +
				api.Kubectl(t, "get", "ns,clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/part-of=vmgrace", "-o", kept)
		}
		before, all := agents(), everything(t, api)
		api.Kubectl(t, "apply", "-k", root+dir)
		api.Kubectl(t, "delete", "--wait=false", "-k", root+dir)
		if after := agents(); after != before || !strings.Contains(after, "Namespace vmgrace-system") {
			t.Errorf("%s: of the agents there is\n%s\nand was\n%s", dir, after, before)
		}
		unchanged(t, api, all)
	}
}
