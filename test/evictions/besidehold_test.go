//go:build !unit

package evictions

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// beside is an API server with KubeVirt's CRDs, and cluster-controller beside it.
type beside struct {
	rig.Space

	log func() string
}

func newBeside(t *testing.T, gates string) *beside {
	t.Helper()
	api := cluster.NewAPI(t)
	for _, dir := range []string{"crds", "daemonset", "beside-kubevirt"} {
		api.Kubectl(t, "apply", "-k", "../../deploy/"+dir)
	}
	api.Kubectl(t, "label", "crd", "virtualmachineinstances.kubevirt.io", "app.kubernetes.io/managed-by=virt-operator")
	api.KubectlApply(t, "{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: kubevirt, namespace: default}, spec: {configuration: {developerConfiguration: {featureGates: ["+gates+"]}}}}")
	its, err := rig.New(api, shared.Binary)
	kit.Must(t, err)
	ports := rig.FreePorts(t, 2)
	// Nothing routes to a Service here.
	manifest, err := exec.CommandContext(t.Context(), "kubectl", "kustomize", "../../deploy/beside-kubevirt").Output()
	kit.Must(t, err)
	_, hooks, _ := strings.Cut(string(manifest), "kind: MutatingWebhookConfiguration\n")
	service := regexp.MustCompile(`service:\n +name: .*\n +namespace: .*\n +path: (.*)\n +port: 443`)
	api.Kubectl(t, "delete", "mutatingwebhookconfiguration", "--all")
	api.KubectlApply(t, "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\n"+service.ReplaceAllString(hooks, "url: https://localhost:"+ports[0]+"$1"))
	runs := its.Begin(t, "--kubeconfig="+api.ServiceAccount(t, rig.Ours, "cluster-controller").Kubeconfig, "--beside-kubevirt",
		"--webhook-port="+ports[0], "--metrics-address=", "--health-address=127.0.0.1:"+ports[1], "-v")
	kit.Eventually(t, "it is ready, and the API server has the caBundle", func() bool {
		return rig.Fetch("http://127.0.0.1:"+ports[1]+"/readyz") == "ok" &&
			api.Kubectl(t, "get", "mutatingwebhookconfiguration", "-o", "jsonpath={.items[*].webhooks[*].clientConfig.caBundle}") != ""
	})
	b := &beside{Space: its.Namespace(t), log: runs.Log}
	api.Kubectl(t, "label", "namespace", b.NS, "pod-security.kubernetes.io/enforce=baseline")
	b.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, rig.NodeReady)
	return b
}

// vm makes a running VM whose launcher is as KubeVirt's.
func (b *beside) vm(name string, strategy kubevirt.EvictionStrategy, change ...func(*corev1.Pod)) *corev1.Pod {
	compute := func(p *corev1.Pod) {
		p.Spec.Containers[0].Name = "compute"
		p.Spec.TerminationGracePeriodSeconds = new(int64(75))
	}
	b.VM(name, "node-a", strategy, `{"phase":"Running","nodeName":"node-a","conditions":[{"type":"LiveMigratable","status":"True"}]}`, append([]func(*corev1.Pod){compute}, change...)...)
	return rig.Read[corev1.Pod](b.Space, "virt-launcher-"+name)
}

func (b *beside) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	var all corev1.PodList
	kit.Must(t, b.List(t.Context(), &all))
	return all.Items
}

// Given a feature gate, and launcher pods that are created in a namespace with Pod Security. Then
// those of VMs that may be moved have directory, hook, annotations and time, once, and all
// others are as KubeVirt made them.
func TestBesideKubeVirtLaunchersThatMayBeMovedAreHeld(t *testing.T) {
	b := newBeside(t, "PreemptionEvictionLiveMigration")
	var p *corev1.Pod
	kit.Eventually(t, "the API server asks the webhook", func() bool {
		p = b.vm(fmt.Sprint("moves-", len(b.pods(t))), kubevirt.StrategyLiveMigrate)
		return len(p.Annotations) > 1
	})
	held := func(p *corev1.Pod) {
		t.Helper()
		c := p.Spec.Containers[0]
		switch {
		case *p.Spec.TerminationGracePeriodSeconds != 75+150, p.Annotations["vmgrace.io/shutdown-reserve-seconds"] != "75",
			p.Annotations["vmgrace.io/hold-for"] != "PreemptionByScheduler", p.Annotations["kubevirt.io/domain"] == "":
			t.Errorf("%d s, %v", *p.Spec.TerminationGracePeriodSeconds, p.Annotations)
		case len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].Name != "vmgrace" || p.Spec.Volumes[0].EmptyDir == nil ||
			p.Spec.Volumes[0].EmptyDir.Medium != corev1.StorageMediumMemory || p.Spec.Volumes[0].EmptyDir.SizeLimit.String() != "1Mi",
			len(c.VolumeMounts) != 1 || c.VolumeMounts[0].MountPath != "/var/run/vmgrace/launcher" || c.VolumeMounts[0].ReadOnly:
			t.Errorf("volumes %v, mounts %v", p.Spec.Volumes, c.VolumeMounts)
		case c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Exec.Command[0] != "/bin/sh":
			t.Errorf("hook %v", c.Lifecycle)
		}
	}
	held(p)
	// A pod that has all of it already is left so: the API server may ask twice.
	p.ResourceVersion, p.UID, p.Name = "", "", "virt-launcher-twice"
	b.Make(p, "")
	held(rig.Read[corev1.Pod](b.Space, "virt-launcher-twice"))

	own := b.vm("own", kubevirt.StrategyLiveMigrate, func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
	})
	kit.Eventually(t, "an Event says that it is not held", func() bool {
		return strings.Contains(b.Kubectl(t, "get", "events.events.k8s.io", "-n", b.NS, "-o", "jsonpath={range .items[*]}{.regarding.name} {.reason}: {.note}{end}"),
			"own LauncherNotHeld: the shutdown of its new launcher pod cannot be held while the VM is moved: its container compute has a preStop hook of its own")
	})
	stays := b.vm("stays", kubevirt.StrategyNone)
	b.Kubectl(t, "patch", "kubevirt", "kubevirt", "-n", "default", "--type=merge", "-p", `{"spec":{"configuration":{"developerConfiguration":{"featureGates":[]}}}}`)
	var gateOff *corev1.Pod
	kit.Eventually(t, "without a gate nothing is changed", func() bool {
		gateOff = b.vm(fmt.Sprint("off-", len(b.pods(t))), kubevirt.StrategyLiveMigrate)
		return len(gateOff.Annotations) == 1
	})
	// KubeVirt's virt-controller labels launchers: a pod that names a VMI without its UID is not linked.
	nobodys := b.Launcher(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}, "node-a")
	nobodys.Name, nobodys.Spec.TerminationGracePeriodSeconds = "virt-launcher-nobodys", new(int64(75))
	delete(nobodys.Labels, kubevirt.CreatedByLabel)
	b.Make(nobodys, "")
	if nobodys.Labels[kubevirt.CreatedByLabel] != "" || len(nobodys.OwnerReferences) > 0 {
		t.Errorf("%+v", nobodys.ObjectMeta)
	}
	for _, p := range []*corev1.Pod{own, stays, gateOff, nobodys} {
		if *p.Spec.TerminationGracePeriodSeconds != 75 || len(p.Annotations) != 1 || len(p.Spec.Volumes) != 0 || len(p.Spec.Containers[0].VolumeMounts) != 0 {
			t.Errorf("%s is not as it was made: %v, %v", p.Name, p.Annotations, p.Spec)
		}
	}
}

// kubeVirts is the part of KubeVirt's webhook for evictions that a move depends on.
type kubeVirts struct {
	*testing.T

	says   atomic.Pointer[string] // "" allows
	asked  atomic.Int64
	server *httptest.Server
}

func (k *kubeVirts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		k.Error(err)
		return
	}
	k.asked.Add(1)
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if says := *k.says.Load(); says != "" {
		review.Response.Allowed, review.Response.Result = false, &metav1.Status{Code: http.StatusTooManyRequests, Message: says}
	}
	review.Request = nil
	if err := json.NewEncoder(w).Encode(review); err != nil {
		k.Error(err)
	}
}

// answers puts the webhook where KubeVirt has it.
func (b *beside) answers(t *testing.T, says string) *kubeVirts {
	t.Helper()
	k := &kubeVirts{T: t}
	k.says.Store(&says)
	k.server = httptest.NewTLSServer(k)
	t.Cleanup(k.server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.server.Certificate().Raw})
	config, err := json.Marshal(map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": map[string]any{"name": "virt-api-validator"},
		"webhooks": []any{map[string]any{
			"name": "virt-launcher-eviction-interceptor.kubevirt.io", "admissionReviewVersions": []string{"v1"}, "sideEffects": "NoneOnDryRun", "failurePolicy": "Fail",
			"clientConfig": map[string]any{"url": k.server.URL + "/launcher-eviction-validate", "caBundle": ca},
			"rules":        []any{map[string]any{"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "operations": []string{"*"}, "resources": []string{"pods/eviction"}}},
		}},
	})
	kit.Must(t, err)
	b.KubectlApply(t, string(config))
	return k
}

// preempt deletes a VM's launcher as the scheduler does. Its finalizer plays the kubelet.
func (b *beside) preempt(t *testing.T, name string) {
	t.Helper()
	b.Kubectl(t, "patch", "pod", "-n", b.NS, name, "--subresource=status", "-p", `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler"}]}}`)
	b.Kubectl(t, "delete", "pod", "-n", b.NS, name, "--wait=false")
}

// Given KubeVirt's webhook, and launchers that are preempted, and one on a tainted node. Then
// each move is asked for by an eviction: the answer is what counts, no migration is made, no
// launcher is stopped, and the reason of the deletion stays.
func TestBesideKubeVirtAMoveIsAskedForByAnEviction(t *testing.T) {
	b := newBeside(t, "PreemptionEvictionLiveMigration")
	k := b.answers(t, "kubevirt failed marking the vmi for eviction: try again")
	p := b.vm("moves", kubevirt.StrategyLiveMigrate)
	kit.Eventually(t, "the API server asks KubeVirt's webhook", func() bool {
		_, err := b.TryKubectl(t.Context(), `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+p.Name+`"},"deleteOptions":{"dryRun":["All"]}}`,
			"create", "--raw", "/api/v1/namespaces/"+b.NS+"/pods/"+p.Name+"/eviction", "-f", "-")
		return err != nil && k.asked.Load() > 0
	})
	was := k.asked.Load()
	b.preempt(t, p.Name)
	kit.Eventually(t, "an error is retried", func() bool { return k.asked.Load() > was+2 })
	says := `Eviction triggered evacuation of VMI "` + b.NS + `/moves"`
	k.says.Store(&says)
	kit.Eventually(t, "the VM is to leave its node", func() bool {
		return strings.Contains(b.log(), "VM is to leave its node: Kubernetes deletes its launcher")
	})
	reason := b.Kubectl(t, "get", "pod", "-n", b.NS, p.Name, "-o", `jsonpath={.status.conditions[?(@.type=="DisruptionTarget")].reason}`)
	if reason != "PreemptionByScheduler" || len(b.Migrations()) > 0 {
		t.Errorf("the launcher is deleted for %s, and there are %d migrations", reason, len(b.Migrations()))
	}

	// A tainted node: two VMs, one at a time. What is asked for in vain stops no VM.
	says2 := `Evacuation in progress: Eviction triggered evacuation of VMI "x/y"`
	k.says.Store(&says2)
	b.vm("tainted-1", kubevirt.StrategyLiveMigrate)
	b.vm("tainted-2", kubevirt.StrategyLiveMigrate)
	b.KubectlApply(t, `{apiVersion: vmgrace.io/v1alpha1, kind: EvacuationPolicy, metadata: {name: default}, spec: {taintReplacement: {options: [{key: maint, durationInSeconds: 0}], taintReplacementTimeSeconds: 0, maxTaintedNodes: 2}}}`)
	b.Taint("node-a", "maint")
	tolerates := func() string {
		return b.Kubectl(t, "get", "evacuationpolicy", "default", "-o", `jsonpath={.status.conditions[?(@.type=="VirtHandlerTolerates")].message}`)
	}
	kit.Eventually(t, "no virt-handler is known", func() bool { return strings.Contains(tolerates(), "there is no DaemonSet") })
	b.KubectlApply(t, `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: virt-handler, namespace: `+b.NS+`, labels: {kubevirt.io: virt-handler}}, spec: {selector: {matchLabels: {a: b}},
		template: {metadata: {labels: {a: b}}, spec: {tolerations: [{key: CriticalAddonsOnly, operator: Exists}], containers: [{name: c, image: none}]}}}}`)
	kit.Eventually(t, "the key that would end virt-handler is named", func() bool {
		return strings.Contains(tolerates(), "virt-handler does not tolerate NoExecute taints with the key maint:")
	})
	replaced := func() string {
		return b.Kubectl(t, "get", "evacuationpolicy", "default", "-o", `jsonpath={range .status.vmis[?(@.started)]}{.name} {end}`)
	}
	kit.Eventually(t, "one VM is replaced", func() bool { return replaced() != "" })
	first := strings.TrimSpace(replaced())
	b.Kubectl(t, "patch", "vmi", "-n", b.NS, first, "--subresource=status", "--type=merge", "-p", `{"status":{"evacuationNodeName":"node-a"}}`)
	kit.Eventually(t, "KubeVirt's mark is known as what was asked for", func() bool {
		return strings.Contains(b.Kubectl(t, "get", "evacuationpolicy", "default", "-o", `jsonpath={.status.vmis[*].reason}`), "WaitsForItsTurn")
	})
	if now := replaced(); strings.TrimSpace(now) != first || len(b.Migrations()) > 0 {
		t.Errorf("replaced: %s, then %s; %d migrations", first, now, len(b.Migrations()))
	}
	for _, name := range []string{"tainted-1", "tainted-2"} {
		if rig.Read[corev1.Pod](b.Space, "virt-launcher-"+name).DeletionTimestamp != nil {
			t.Errorf("%s is stopped", name)
		}
	}
	if strings.Contains(b.log(), "forbidden") {
		t.Error(b.log())
	}
}
