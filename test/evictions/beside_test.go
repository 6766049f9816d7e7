//go:build !unit

package evictions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given a cluster with KubeVirt's CRDs, and the rights of deploy/beside-kubevirt. When
// cluster-controller runs with --beside-kubevirt, then it moves VMs by migrations, needs no
// further right, and writes nothing of KubeVirt's other objects. Otherwise two
// controllers would write the same objects.
func TestBesideKubeVirtItMakesMigrationsAndMayDoNothingElse(t *testing.T) {
	api := cluster.NewAPI(t)
	api.Kubectl(t, "apply", "-k", "../../deploy/crds")
	api.Kubectl(t, "label", "crd", "virtualmachineinstances.kubevirt.io", "app.kubernetes.io/managed-by=virt-operator")
	api.Kubectl(t, "apply", "-k", "../../deploy/daemonset")
	api.Kubectl(t, "apply", "-k", "../../deploy/beside-kubevirt")
	account := api.ServiceAccount(t, rig.Ours, "cluster-controller")
	its, err := rig.New(api, shared.Binary)
	kit.Must(t, err)
	start := func(args ...string) *replica {
		r := &replica{health: "127.0.0.1:" + rig.FreePorts(t, 1)[0]}
		r.Process = its.Begin(t, append([]string{"--kubeconfig=" + account.Kubeconfig, "--metrics-address=", "--health-address=" + r.health, "-v"}, args...)...)
		return r
	}

	refused := start()
	kit.Eventually(t, "without the flag it refuses to start", func() bool { return !refused.Running() })
	if said := refused.Log(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "start with --beside-kubevirt") {
		t.Errorf("it says %q", said)
	}

	// Given a feature gate, a policy, a tainted node, and VMs as KubeVirt writes them.
	api.KubectlApply(t, `
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: default}
spec: {configuration: {developerConfiguration: {featureGates: [PreemptionEvictionLiveMigration]}}}
---
apiVersion: vmgrace.io/v1alpha1
kind: EvacuationPolicy
metadata: {name: default}
spec: {taintReplacement: {options: [{key: maint, durationInSeconds: 0}], taintReplacementTimeSeconds: 1, maxConcurrentReplacements: 5, maxTaintedNodes: 2}}
`)
	s := its.In(t, "default")
	taints := []corev1.Taint{{Key: "maint", Effect: corev1.TaintEffectNoSchedule}}
	s.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-beside"}, Spec: corev1.NodeSpec{Taints: taints}}, rig.NodeReady)
	s.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-clean"}}, rig.NodeReady)
	made := func(name, on string) besideVMI {
		s.VM(name, on, kubevirt.StrategyLiveMigrate, `{"phase":"Running","nodeName":"`+on+`","conditions":[{"type":"LiveMigratable","status":"True"}]}`,
			func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(300)) })
		return besideVMI{t, s, name}
	}
	replaced, preempted := made("replaced", "node-beside"), made("preempted", "node-clean")
	stays := made("stays", "node-clean")
	before := replaced.text() + preempted.text() + stays.text()

	// When the controller runs, and Kubernetes preempts a launcher pod,
	runs := start("--beside-kubevirt")
	kit.Eventually(t, "it is ready and has the lease", func() bool {
		return runs.get("/readyz") == "ok" && strings.Contains(runs.Log(), "uccessfully acquired lease")
	})
	api.Kubectl(t, "patch", "pod", "virt-launcher-preempted", "--subresource=status", "-p",
		`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler"}]}}`)
	api.Kubectl(t, "delete", "pod", "virt-launcher-preempted", "--wait=false")
	// then each VM that is to leave has one migration, with its cause,
	for v, cause := range map[besideVMI]string{replaced: "NodeTaint", preempted: "PreemptionByScheduler"} {
		kit.Eventually(t, v.name+" has a migration", func() bool { return v.migrations() == cause+" " })
	}
	// and the policy's status has the condition that the VMI lacks.
	status := api.Kubectl(t, "get", "evacuationpolicy", "default", "-o", "jsonpath={.status.vmis[*].name} {.status.vmis[*].condition}")
	if status != "replaced NodeTaintReplacing" {
		t.Errorf("status: %s", status)
	}
	// When the first migration fails, then the next attempt waits.
	failed := api.Kubectl(t, "get", "vmim", "-l", "kubevirt.io/vmi-name=replaced", "-o", "name")
	api.Kubectl(t, "patch", failed, "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Failed"}}`)
	kit.Eventually(t, "it is said why it waits", func() bool { return strings.Contains(runs.Log(), "Backoff: the last migration failed") })
	// When the taint is removed before a migration has begun, then the migration goes.
	api.Kubectl(t, "patch", "node", "node-clean", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"taints":[{"key":"maint","effect":"NoSchedule","timeAdded":%q}]}}`, time.Now().UTC().Format(time.RFC3339)))
	kit.Eventually(t, "a second VM has one", func() bool { return stays.migrations() == "NodeTaint " })
	api.Kubectl(t, "patch", "node", "node-clean", "--type=merge", "-p", `{"spec":{"taints":null}}`)
	kit.Eventually(t, "it is taken back", func() bool { return stays.migrations() == "" })
	// No VM was stopped: where nobody answers evictions, none is carried out.
	if stopped := api.Kubectl(t, "get", "pods", "-o", `jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}`); stopped != "virt-launcher-preempted" {
		t.Errorf("launchers that end: %s", stopped)
	}
	runs.Kill()
	if log := runs.Log(); strings.Contains(log, "forbidden") {
		t.Error(log)
	}
	if after := replaced.text() + preempted.text() + stays.text(); after != before {
		t.Errorf("VMIs were written to:\n%s\n%s", before, after)
	}
}

// besideVMI is a VMI as KubeVirt writes it.
type besideVMI struct {
	rig.T
	rig.Space

	name string
}

func (v besideVMI) text() string { return v.Kubectl(v, "get", "vmi", v.name, "-o", "yaml") }

// migrations returns the causes of the VMI's migrations that have not failed.
func (v besideVMI) migrations() string {
	causes := ""
	for line := range strings.Lines(v.Kubectl(v, "get", "vmim", "-o",
		`jsonpath={range .items[?(@.spec.vmiName=="`+v.name+`")]}{.status.phase},{.metadata.annotations.vmgrace\.io/evacuation-cause}{"\n"}{end}`)) {
		if phase, cause, _ := strings.Cut(strings.TrimSpace(line), ","); phase != "Failed" {
			causes += cause + " "
		}
	}
	return causes
}
