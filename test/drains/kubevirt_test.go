//go:build !unit

package drains

import (
	"encoding/json"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// withKubeVirt is an API server with KubeVirt: its VMIs have no status subresource, evictions of
// launchers are denied by its webhook, and its own subresource removes a mark.
type withKubeVirt struct {
	*cluster.API

	t          *testing.T
	rig        *rig.Rig
	kubeconfig string // of its front
	unmarked   atomic.Int32
	evicted    atomic.Int32
}

// The VM moving is marked and is moved to node-b by KubeVirt. The VM local cannot be moved.
const kubeVirtsVMs = `
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {kubernetes.io/hostname: host-a}}
---
apiVersion: v1
kind: Node
metadata: {name: node-b, labels: {kubernetes.io/hostname: host-b}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: moving, namespace: default, labels: {kubevirt.io/nodeName: node-a}, finalizers: [foregroundDeleteVirtualMachine]}
spec: {evictionStrategy: LiveMigrate, terminationGracePeriodSeconds: 180, domain: {devices: {}}}
status:
  phase: Running
  nodeName: node-a
  evacuationNodeName: node-a
  conditions: [{type: LiveMigratable, status: "True", lastProbeTime: null, lastTransitionTime: null}]
  migrationState: {migrationUid: MOVE, sourceNode: node-a, targetNode: node-b, targetPod: virt-launcher-moving-target, startTimestamp: "2026-11-28T06:00:00Z", mode: PreCopy}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: local, namespace: default, labels: {kubevirt.io/nodeName: node-a}, finalizers: [foregroundDeleteVirtualMachine]}
spec: {evictionStrategy: LiveMigrate, terminationGracePeriodSeconds: 30, domain: {devices: {}}}
status:
  phase: Running
  nodeName: node-a
  conditions: [{type: LiveMigratable, status: "False", reason: DisksNotLiveMigratable, message: "cannot migrate VMI: PVC data is not shared", lastProbeTime: null, lastTransitionTime: null}]
`

func newWithKubeVirt(t *testing.T) *withKubeVirt {
	t.Helper()
	k := &withKubeVirt{API: cluster.NewAPI(t), t: t}
	k.Kubectl(t, "apply", "-k", "../../deploy/crds")
	k.Kubectl(t, "label", "crd", "virtualmachineinstances.kubevirt.io", "app.kubernetes.io/managed-by=virt-operator")
	k.Kubectl(t, "patch", "crd", "virtualmachineinstances.kubevirt.io", "--type=json", "-p", `[{"op":"remove","path":"/spec/versions/0/subresources"}]`)
	eventually(t, "VMIs have no status subresource", func() bool {
		out, err := k.TryKubectl(t.Context(), "", "get", "--raw", "/apis/kubevirt.io/v1")
		return err == nil && !strings.Contains(out, `"virtualmachineinstances/status"`)
	})
	var err error
	k.rig, err = rig.New(k.API, shared.vmgrace)
	kit.Must(t, err)
	k.kubeconfig = k.rig.Proxy(t, k.Kubeconfig, k.front)
	k.KubectlApply(t, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: kubevirt-evacuation-x, namespace: default, annotations: {kubevirt.io/evacuationMigration: node-a}, labels: {kubevirt.io/vmi-name: moving}}
spec: {vmiName: moving, priority: system-critical}
`)
	k.Kubectl(t, "patch", "vmim", "kubevirt-evacuation-x", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running"}}`)
	move := k.Kubectl(t, "get", "vmim", "kubevirt-evacuation-x", "-o", "jsonpath={.metadata.uid}")
	k.KubectlApply(t, strings.Replace(kubeVirtsVMs, "MOVE", move, 1))
	// It is older than the VMI here, which names it.
	uid := k.Kubectl(t, "get", "vmi", "moving", "-o", "jsonpath={.metadata.uid}")
	k.Kubectl(t, "patch", "vmim", "kubevirt-evacuation-x", "--type=merge", "-p",
		`{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"moving","uid":"`+uid+`"}]}}`)
	for _, vm := range []string{"moving", "local"} {
		launcher := k.rig.In(t, "default").Launcher(rig.Read[kubevirt.VirtualMachineInstance](k.rig.In(t, "default"), vm), "node-a")
		launcher.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: vm, UID: "u", Controller: new(true)}}
		k.rig.In(t, "default").Make(launcher, rig.PodRuns)
	}
	return k
}

// front answers in KubeVirt's place.
func (k *withKubeVirt) front(api *httputil.ReverseProxy) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/moving/evacuate/cancel":
			k.unmarked.Add(1)
			if _, err := k.TryKubectl(r.Context(), "", "patch", "vmi", "moving", "--type=merge", "-p", `{"status":{"evacuationNodeName":null}}`); err != nil {
				k.t.Error(err)
			}
		case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods/virt-launcher-moving/eviction"):
			k.evicted.Add(1)
			k.deny(w, `Eviction triggered evacuation of VMI "default/moving"`)
		case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods/virt-launcher-local/eviction"):
			k.deny(w, "VMI local is configured with an eviction strategy but is not live-migratable")
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// deny answers an eviction as KubeVirt's webhook does.
func (k *withKubeVirt) deny(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusTooManyRequests)
	err := json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: `admission webhook "virt-launcher-eviction-interceptor.kubevirt.io" denied the request: ` + why,
	})
	if err != nil {
		k.t.Error(err)
	}
}

// vmgrace runs kubectl vmgrace.
func (k *withKubeVirt) vmgrace(args ...string) *run {
	return &run{k.rig.Begin(k.t, append(args, "--kubeconfig="+k.kubeconfig)...), k.t}
}

// Given KubeVirt's VMs, one that KubeVirt moves and one that cannot be moved. Then kubectl
// vmgrace shows and handles them as its own.
func TestKubeVirtsVMsAreShownAndHandledAsOurOwn(t *testing.T) {
	k := newWithKubeVirt(t)
	status := k.vmgrace("status", "--node", "node-a", "-o", "wide")
	status.ends(0)
	status.said("moving", "Running to node-b", "PVC data is not shared", "180s")
	if strings.Contains(status.Log(), "%") {
		t.Errorf("KubeVirt says no progress, and it shows one:\n%s", status.Log())
	}
	why := k.vmgrace("why", "node-a")
	why.ends(0)
	why.said("moving", "local", "PVC data is not shared")

	// A drain waits for the move, and ends with the source's launcher.
	uid := k.Kubectl(t, "get", "vmi", "moving", "-o", "jsonpath={.metadata.uid}")
	drain := k.vmgrace("drain", "node-a", "--pod-selector=kubevirt.io/created-by="+uid)
	drain.says("Moving")
	k.Kubectl(t, "delete", "pod", "virt-launcher-moving", "--force", "--grace-period=0")
	drain.ends(0)
	if k.evicted.Load() == 0 {
		t.Error("it evicted nothing")
	}
	k.Kubectl(t, "uncordon", "node-a")

	// cancel removes the mark in KubeVirt's way, and the migration.
	cancel := k.vmgrace("cancel", "moving")
	cancel.ends(0)
	if n := k.unmarked.Load(); n != 1 {
		t.Errorf("KubeVirt was asked %d times to remove the mark", n)
	}
	if left := k.Kubectl(t, "get", "vmim", "-o", "name"); left != "" {
		t.Errorf("%s is left", left)
	}

	// migrate makes KubeVirt's migration, and says what KubeVirt says of its failure.
	migrate := k.vmgrace("migrate", "moving", "--to", "node-b", "--wait")
	migrate.says(" created")
	made := k.Kubectl(t, "get", "vmim", "-o", "jsonpath={.items[0].metadata.name} {.items[0].spec}")
	name, spec, _ := strings.Cut(made, " ")
	if spec != `{"addedNodeSelector":{"kubernetes.io/hostname":"host-b"},"vmiName":"moving"}` {
		t.Errorf("it made %s", made)
	}
	k.Kubectl(t, "patch", "vmim", name, "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Failed","migrationState":{"failed":true,"failureReason":"the target is full"}}}`)
	migrate.ends(1)
	migrate.said("the target is full")
	refused := k.vmgrace("migrate", "local")
	refused.ends(1)
	refused.said("PVC data is not shared")

	// shutdown deletes the VMI; the rest is KubeVirt's.
	k.vmgrace("shutdown", "local", "--yes").ends(0)
	if k.Kubectl(t, "get", "vmi", "local", "-o", "jsonpath={.metadata.deletionTimestamp}") == "" {
		t.Error("the VMI is not deleted")
	}
	k.Kubectl(t, "patch", "vmi", "local", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
}
