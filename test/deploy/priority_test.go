package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// limited is how GKE has the API server limit the system's priorities: to namespaces with a quota
// for them.
const limited = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - {resource: pods, matchScopes: [{scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}]}
`

// Given a cluster that limits the system's priorities, as GKE does. When vmgrace is installed, then
// its pods are made, and such pods elsewhere are not.
func TestOurPodsAreAllowedWhereTheirPrioritiesAreLimited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(file, []byte(limited), 0o600); err != nil {
		t.Fatal(err)
	}
	api := cluster.NewAPI(t, "--admission-control-config-file="+file)
	api.Kubectl(t, "apply", "-k", root+"deploy/daemonset")
	// As kube-controller-manager does.
	api.Kubectl(t, "patch", "quota", "critical-pods", "-n", "vmgrace-system", "--subresource=status", "--type=merge", "-p",
		`{"status":{"hard":{"pods":"1G"},"used":{"pods":"0"}}}`)
	for _, priority := range []string{"system-node-critical", "system-cluster-critical"} {
		in := func(namespace string) error {
			_, err := api.TryKubectl(t.Context(), `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "`+priority+`", "namespace": "`+namespace+`"},
				"spec": {"priorityClassName": "`+priority+`", "containers": [{"name": "c", "image": "none"}]}}`, "create", "--dry-run=server", "-f", "-")
			return err
		}
		node.Eventually(t, 20*time.Second, func() bool { return in("vmgrace-system") == nil }, "%s is allowed", priority)
		if err := in("default"); err == nil || !strings.Contains(err.Error(), "insufficient quota") {
			t.Errorf("elsewhere: %v", err)
		}
	}
}
