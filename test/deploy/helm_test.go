//go:build nightly

package deploy

import (
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/cluster"
)

// helm runs Helm's own program on the release vmgrace.
func helm(t *testing.T, api *cluster.API, args ...string) (string, error) {
	t.Helper()
	program, err := cluster.Helm()
	if err != nil {
		t.Fatal(err)
	}
	return api.Script(t.Context(), program, append(args, "-n", "vmgrace-system")...)
}

// Given what kubectl apply -k has made, when Helm takes it over, then no object is made anew:
// agents that are replaced one at a time, and a namespace with its certificates.
func TestHelmTakesOverWhatKubectlHasApplied(t *testing.T) {
	const kept = `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.deletionTimestamp}{"\n"}{end}`
	api := cluster.NewAPI(t)
	if out, err := api.Script(t.Context(), root+"deploy/crds/run", "apply"); err != nil {
		t.Fatal(err, out)
	}
	api.Kubectl(t, "apply", "-k", root+"deploy")
	made := func() string {
		return api.Kubectl(t, "get", "-n", "vmgrace-system", "ds,deploy,svc,sa,quota,roles,rolebindings,pdb", "-o", kept) +
			api.Kubectl(t, "get", "ns,crd,clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies",
				"-l", "app.kubernetes.io/part-of=vmgrace", "-o", kept)
	}
	before := made()
	if out, err := helm(t, api, "install", "vmgrace", root+"deploy/chart", "--take-ownership", "--server-side=false"); err != nil {
		t.Fatal(err, out)
	}
	if after := made(); after != before || !strings.Contains(after, "DaemonSet node-agent") {
		t.Errorf("there is\n%s\nand was\n%s", after, before)
	}
	if by := api.Kubectl(t, "get", "ds", "node-agent", "-n", "vmgrace-system", "-o", `jsonpath={.metadata.annotations.meta\.helm\.sh/release-name}`); by != "vmgrace" {
		t.Errorf("the agents are of the release %q", by)
	}
	if out, err := helm(t, api, "uninstall", "vmgrace"); err != nil {
		t.Error(err, out)
	}
	if left := api.Kubectl(t, "get", "ds,deploy", "-n", "vmgrace-system", "-o", "name"); left != "" {
		t.Errorf("still there: %s", left)
	}
}

func TestHelmRefusesWhereTheCRDsAreKubeVirts(t *testing.T) {
	api := cluster.NewAPI(t)
	given(t, api, foreignCRD)
	api.Kubectl(t, "apply", "-f", root+"deploy/daemonset/namespace.yaml")
	kept := func() string {
		return api.Kubectl(t, "get", "vmi/kept", "crd/virtualmachineinstances.kubevirt.io", "-n", "default", "-o", "jsonpath={.items[*].metadata.resourceVersion}")
	}
	before := kept()
	if out, err := helm(t, api, "install", "vmgrace", root+"deploy/chart"); err == nil || !strings.Contains(out, "conflict") {
		t.Errorf("helm install: %v, %s", err, out)
	}
	if after := kept(); after != before {
		t.Errorf("KubeVirt's CRD and the VMI were changed: versions %s, before %s", after, before)
	}
	if out, err := helm(t, api, "install", "vmgrace", root+"deploy/chart", "--set", "withoutKubeVirt=false"); err != nil {
		t.Error(err, out)
	}
}
