//go:build nightly

package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

const (
	webhooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
	policies = "validatingadmissionpolicies,validatingadmissionpolicybindings"
	ours     = "app.kubernetes.io/part-of=vmgrace"
)

// helm runs Helm's own program on the release vmgrace.
func (w *world) helm(ctx context.Context, args ...string) error {
	program, err := cluster.Helm()
	if err != nil {
		return err
	}
	_, err = w.Script(ctx, program, append(args, "-n", agents, "--wait", "--timeout=2m")...)
	return err
}

// withValues installs or upgrades the chart with these values.
func (w *world) withValues(verb, values string) {
	w.Helper()
	file := filepath.Join(w.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		w.Fatal(err)
	}
	if err := w.helm(w.Context(), verb, "vmgrace", "../../deploy/chart", "-f", file); err != nil {
		w.Fatal(err)
	}
}

// without deletes all manifests of vmgrace, and puts the agents back when the test ends.
func (w *world) without() {
	w.Helper()
	from := time.Now()
	w.restore(func(ctx context.Context) error {
		uninstalled := w.helm(ctx, "uninstall", "vmgrace", "--ignore-not-found")
		applied := w.applyAgents(ctx)
		w.unsettled = append(w.unsettled, window{from, time.Now()})
		return errors.Join(uninstalled, applied)
	})
	w.Kubectl(w, "delete", "-k", "../../deploy", "--ignore-not-found")
	w.step("kubectl delete -k deploy")
	w.nothingRuns()
}

// nothingRuns asserts that nothing of vmgrace runs, and that the API server asks nobody.
func (w *world) nothingRuns() {
	w.Helper()
	node.Eventually(w, soon, func() bool {
		return w.find(objects.Query{Kind: "pod", Namespace: agents, Path: "{.items[*].metadata.name}"}) == ""
	}, "pods of vmgrace are still there")
	if left := w.Kubectl(w, "get", webhooks+","+policies+",clusterroles,clusterrolebindings", "-l", ours, "-o", "name"); left != "" {
		w.Errorf("what is left: %s", left)
	}
}

// Given a VM, and a cluster from which all of vmgrace was deleted, then the VM goes on. When Helm
// installs vmgrace, then VMs have their grace periods. When Helm upgrades it with other values, then
// no deadline moves. When Helm uninstalls it, then VMs go on, and there is what the document says.
func TestHelmInstallsUpgradesAndUninstallsAndNoVMNoticesIt(t *testing.T) {
	values := `
agent:
  flags: {migration-allow-paths: "` + allowed() + `"}
evacuationPolicy: {migrationAllowance: 30s}
kubevirtConfiguration: {developerConfiguration: {featureGates: [PreemptionEvictionLiveMigration, NoExecuteTaintEvictionLiveMigration]}}
`
	w := given(t)
	kept := w.vm(plan{Spec: deaf(), grace: 5, on: w.b})
	w.without()
	kept.runs()
	w.Kubectl(t, "apply", "-f", "../../deploy/daemonset/namespace.yaml")
	w.withValues("install", values)
	w.waitAgents()
	w.step("helm install")
	kept.waitGuarded()

	// Given a VM whose shutdown is held, one in its grace period, and one that runs
	held := w.holdable(plan{Spec: slow(), grace: 30}, "30")
	dying := w.vm(plan{Spec: deaf(), grace: 20, on: w.b})
	w.liveMigratable(kept)
	w.afterwards("uncordon", w.b.Name)
	w.Kubectl(t, "cordon", w.b.Name)
	held.condition("True", "PreemptionByScheduler")
	w.delete(held.launcherPod())
	latest := held.held("PreemptionByScheduler")
	w.delete("vmi/" + dying.Name)
	s := dying.begun(either, 20*time.Second)

	was := w.agent(w.a)
	w.withValues("upgrade", strings.Replace(values, "agent:\n", "agent:\n  resources: {limits: {memory: 300Mi}}\n", 1))
	w.waitAgents()
	w.step("helm upgrade")
	if is := w.agent(w.a); is == was {
		t.Errorf("the agent's pod is still %s", is)
	}
	dying.kept(s)
	if again := held.held("PreemptionByScheduler"); !again.Equal(latest) {
		t.Errorf("the latest moment was %v, it is %v", latest, again)
	}
	dying.destroyedAt(s.deadline)
	held.begins()
	if began := held.begun("LauncherSignal", 30*time.Second); began.startedAt.Before(latest) {
		t.Errorf("the shutdown begins at %v, before %v", began.startedAt, latest)
	}
	held.offByItself()
	held.ended("LauncherSignal", "Graceful", "ShutdownHeld", "ShutdownStarted", "ShutdownCompleted")

	if err := w.helm(t.Context(), "uninstall", "vmgrace"); err != nil {
		t.Fatal(err)
	}
	w.nothingRuns()
	w.step("helm uninstall")
	kept.runs()
	if got := w.get("vmi", kept.Name, "{.metadata.uid} {.metadata.deletionTimestamp}"); got != kept.uid {
		t.Errorf("its VMI is %s", got)
	}
	w.Kubectl(t, "get", "namespace/"+agents, crd, "crd/evacuationpolicies.vmgrace.io")
	budget := "kubevirt-disruption-budget-" + kept.uid
	if left := w.Kubectl(t, "get", "pdb", "-n", namespace, "-o", "name"); !strings.Contains(left, budget) {
		t.Errorf("budgets: %s", left)
	}
	w.Kubectl(t, "delete", "pdb", "-n", namespace, budget)
	if left := w.Kubectl(t, "get", "nodes", "-l", "vmgrace.io/takes-migrations=true", "-o", "name"); strings.Count(left, "node/") != 2 {
		t.Errorf("labelled nodes: %s", left)
	}
	w.Kubectl(t, "label", "nodes", "--all", "vmgrace.io/takes-migrations-")
	if records := w.b.Run(t, "ls /var/lib/vmgrace"); !strings.Contains(records, kept.Domain+".json") {
		t.Errorf("records: %s", records)
	}
}
