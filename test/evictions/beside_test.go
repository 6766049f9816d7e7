//go:build !unit

package evictions

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// In a cluster of KubeVirt's it runs with what deploy/beside-kubevirt gives it,
// asks for nothing more, and could write nothing that is KubeVirt's.
func TestBesideKubeVirtItNeedsAndMayDoNothingElse(t *testing.T) {
	api := cluster.NewAPI(t)
	api.Kubectl(t, "apply", "-k", "../../deploy/crds")
	api.Kubectl(t, "label", "crd", "virtualmachineinstances.kubevirt.io", "app.kubernetes.io/managed-by=virt-operator")
	api.Kubectl(t, "apply", "-k", "../../deploy/daemonset")
	api.Kubectl(t, "apply", "-k", "../../deploy/beside-kubevirt")
	account := api.ServiceAccount(t, ours, "cluster-controller")
	start := func(args ...string) *replica {
		r := &replica{health: "127.0.0.1:" + freePort(t)}
		cmd := exec.Command(shared.binary, append([]string{"--kubeconfig=" + account.Kubeconfig, "--metrics-address=", "--health-address=" + r.health, "-v"}, args...)...)
		p, err := node.StartProcess(cmd, filepath.Join(t.TempDir(), "log"))
		must(t, err)
		t.Cleanup(p.Kill)
		r.Process = p
		return r
	}

	refused := start()
	eventually(t, "without the flag it refuses to start", func() bool { return !refused.Running() })
	if said := refused.Log(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "start with --beside-kubevirt") {
		t.Errorf("it says %q", said)
	}

	runs := start("--beside-kubevirt")
	eventually(t, "it is ready and has the lease", func() bool {
		return runs.get("/readyz") == "ok" && strings.Contains(runs.Log(), "uccessfully acquired lease")
	})
	runs.Kill()
	if log := runs.Log(); strings.Contains(log, "forbidden") {
		t.Error(log)
	}
	for _, what := range []string{
		"patch vmi", "patch vmi --subresource=status", "update vmi", "create vmim", "delete vmim", "create pdb", "delete pdb", "update pdb",
		"patch pods", "delete pods", "create pods --subresource=eviction", "patch nodes", "get secrets", "update secrets", "patch validatingwebhookconfigurations",
	} {
		args := append([]string{"auth", "can-i", "-n", "default"}, strings.Fields(what)...)
		if out, err := account.TryKubectl(t.Context(), "", args...); err == nil || !strings.Contains(out+err.Error(), "no") {
			t.Errorf("it may %s: %s", what, out)
		}
	}
}
