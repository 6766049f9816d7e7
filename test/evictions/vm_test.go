//go:build !unit

package evictions

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
)

func (r *replica) get(path string) string { return fetch("http://" + r.health + path) }

func fetch(url string) string {
	res, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return string(text)
}

// counted is the sum of a metric's samples that contain all of these words.
func counted(all []*replica, words ...string) (n int) {
	for _, r := range all {
	lines:
		for line := range strings.Lines(fetch("http://" + r.metrics + "/metrics")) {
			for _, w := range words {
				if strings.HasPrefix(line, "#") || !strings.Contains(line, w) {
					continue lines
				}
			}
			var v int
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v)
			n += v
		}
	}
	return n
}

// settled waits until the API server asks the webhook: a VM that is not
// migratable is refused.
func settled(t *testing.T) {
	t.Helper()
	v := newVM(t, vm{strategy: "LiveMigrate"})
	kit.Eventually(t, "the API server asks the webhook", func() bool {
		return strings.Contains(v.evict(t, nil).text, "not live-migratable") || v.again(t)
	})
}

// vm is a VMI with its launcher pod; no kubelet touches it.
type vm struct {
	name, namespace  string
	strategy         string
	migratable       bool
	mark             string
	node, podNode    string
	grace            *int64
	noStatusNodeName bool
	noStatus         bool
	// lateLabel: the pod is no launcher yet when it is made.
	lateLabel bool

	uid string
}

func newVM(t *testing.T, v vm) *vm {
	t.Helper()
	v.namespace = "default"
	if v.node == "" {
		v.node = "node-a"
	}
	if v.podNode == "" {
		v.podNode = v.node
	}
	vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: v.namespace, GenerateName: "vm-", Labels: map[string]string{kubevirt.NodeNameLabel: v.node},
	}}
	if v.strategy != "" {
		s := kubevirt.EvictionStrategy(v.strategy)
		vmi.Spec.EvictionStrategy = &s
	}
	vmi.Spec.TerminationGracePeriodSeconds = v.grace
	kit.Must(t, shared.objects.Create(t.Context(), vmi))
	v.name, v.uid = vmi.Name, string(vmi.UID)
	migratable := "False"
	if v.migratable {
		migratable = "True"
	}
	vmi.Status = kubevirt.VirtualMachineInstanceStatus{
		Phase: kubevirt.VMIRunning, NodeName: v.node, EvacuationNodeName: v.mark,
		Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: migratable, LastProbeTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
	}
	if v.noStatusNodeName {
		vmi.Status.NodeName = ""
	}
	if !v.noStatus {
		kit.Must(t, shared.objects.Status().Update(t.Context(), vmi))
	}
	v.pod(t)
	return &v
}

func (v *vm) launcher() string { return "virt-launcher-" + v.name }

// pod makes the launcher pod, running.
func (v *vm) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	labels := map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: v.uid}
	if v.lateLabel {
		delete(labels, kubevirt.AppLabel)
	}
	return newPod(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.namespace, Name: v.launcher(),
			Labels:      labels,
			Annotations: map[string]string{kubevirt.DomainAnnotation: v.name},
		},
		Spec: corev1.PodSpec{NodeName: v.podNode},
	})
}

func newPod(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	kit.Must(t, shared.objects.Create(t.Context(), p))
	running := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`))
	kit.Must(t, shared.objects.Status().Patch(t.Context(), p, running))
	t.Cleanup(func() {
		_ = shared.core.CoreV1().Pods(p.Namespace).Delete(contextOf(t), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	})
	return p
}

// again makes the launcher pod anew if it was evicted.
func (v *vm) again(t *testing.T) bool {
	t.Helper()
	if !v.podThere(t) {
		v.pod(t)
	}
	return false
}

func (v *vm) podThere(t *testing.T) bool {
	t.Helper()
	err := shared.objects.Get(t.Context(), client.ObjectKey{Namespace: v.namespace, Name: v.launcher()}, &corev1.Pod{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func (v *vm) get(t *testing.T) *kubevirt.VirtualMachineInstance {
	t.Helper()
	vmi := &kubevirt.VirtualMachineInstance{}
	kit.Must(t, shared.objects.Get(t.Context(), client.ObjectKey{Namespace: v.namespace, Name: v.name}, vmi))
	return vmi
}

// answer is what the one who evicts sees; code 0 is an eviction that took place.
type answer struct {
	code  int32
	text  string
	retry int32
}

func (v *vm) evict(t *testing.T, change func(*policyv1.Eviction)) answer {
	t.Helper()
	return evictPod(t, v.namespace, v.launcher(), change)
}

func evictPod(t *testing.T, namespace, name string, change func(*policyv1.Eviction)) answer {
	t.Helper()
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: new(int64)}}
	if change != nil {
		change(e)
	}
	return told(t, shared.core.PolicyV1().Evictions(namespace).Evict(t.Context(), e))
}

func told(t *testing.T, err error) answer {
	t.Helper()
	if err == nil {
		return answer{}
	}
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		t.Fatal(err)
	}
	a := answer{code: s.Status().Code, text: s.Status().Message}
	if s.Status().Details != nil {
		a.retry = s.Status().Details.RetryAfterSeconds
	}
	return a
}

// budget protects the VM as the controllers of budgets and of disruptions would.
func (v *vm) budget(t *testing.T, change ...func(*policyv1.PodDisruptionBudget)) {
	t.Helper()
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: "kubevirt-disruption-budget-" + v.uid},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: v.uid}}},
	}
	for _, c := range change {
		c(pdb)
	}
	kit.Must(t, shared.objects.Create(t.Context(), pdb))
	t.Cleanup(func() { _ = shared.objects.Delete(contextOf(t), pdb) })
	pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, ExpectedPods: 1, DesiredHealthy: 1, CurrentHealthy: 1}
	for _, c := range change {
		c(pdb)
	}
	kit.Must(t, shared.objects.Status().Update(t.Context(), pdb))
}
