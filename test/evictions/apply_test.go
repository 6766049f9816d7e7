//go:build !unit

package evictions

import (
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given the manifests as shipped, and a cluster-controller that has written path and caBundle of
// the webhooks. When somebody applies the manifests again, in either way, then neither changes.
// Otherwise an upgrade fails with a conflict, or evictions are refused for a moment.
func TestApplyingTheManifestsAgainChangesNoWebhook(t *testing.T) {
	api := cluster.NewAPI(t)
	for _, dir := range []string{"crds", "daemonset", "controller"} {
		api.Kubectl(t, "apply", "-k", "../../deploy/"+dir)
	}
	its, err := rig.New(api, shared.Binary)
	kit.Must(t, err)
	ports := rig.FreePorts(t, 3)
	its.Begin(t, "--kubeconfig="+api.ServiceAccount(t, rig.Ours, "cluster-controller").Kubeconfig, "--webhook-port="+ports[0],
		"--metrics-address=127.0.0.1:"+ports[1], "--health-address=127.0.0.1:"+ports[2], "--controllers=eviction-webhook,launcher-webhook")
	written := func() string {
		return api.Kubectl(t, "get", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-o",
			"jsonpath={range .items[*].webhooks[*].clientConfig}{.service.path} {.caBundle} {.service.port};{end}")
	}
	before := ""
	kit.Eventually(t, "the webhooks have path and caBundle", func() bool {
		before = written()
		return strings.Count(before, " LS0t") == 2 && strings.Contains(before, "/evict-pod/")
	})
	for _, how := range []string{"--server-side", "--server-side=false", "--server-side"} {
		api.Kubectl(t, "apply", how, "-k", "../../deploy/controller")
		if after := written(); after != before {
			t.Errorf("apply %s changes %s to %s", how, before, after)
		}
	}
}
