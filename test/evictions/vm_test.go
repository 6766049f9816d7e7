//go:build !unit

package evictions

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

func (r *replica) get(path string) string { return rig.Fetch("http://" + r.health + path) }

// counted returns the sum of the samples whose lines contain all of these words.
func counted(all []*replica, words ...string) (n int) {
	for _, r := range all {
	lines:
		for line := range strings.Lines(rig.Fetch("http://" + r.metrics + "/metrics")) {
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

// allSay waits until each replica has logged these words.
func allSay(t *testing.T, all []*replica, words string) {
	t.Helper()
	for _, r := range all {
		kit.Eventually(t, "a replica says "+words, func() bool { return strings.Contains(r.Log(), words) })
	}
}

// settled waits until the API server asks the webhook: it then refuses the eviction of a VM
// that is not migratable.
func settled(t *testing.T) {
	t.Helper()
	v := newVM(t, vm{strategy: "LiveMigrate"})
	kit.Eventually(t, "the API server asks the webhook", func() bool {
		return strings.Contains(v.evict().text, "not live-migratable") || v.again()
	})
}

// vm is a VMI with its launcher pod. No kubelet runs it.
type vm struct {
	rig.T
	rig.Space

	name       string
	strategy   string
	migratable bool
	mark       string
	node       string
	grace      *int64
	noStatus   bool
	// lateLabel makes the pod without the launcher label.
	lateLabel bool

	uid string
}

func newVM(t *testing.T, v vm) *vm {
	t.Helper()
	v.T, v.Space = t, shared.In(t, "default")
	v.node = cmp.Or(v.node, "node-a")
	vmi := v.VMI("", v.node, kubevirt.EvictionStrategy(v.strategy))
	vmi.Spec.TerminationGracePeriodSeconds = v.grace
	v.Make(vmi, "")
	v.name, v.uid = vmi.Name, string(vmi.UID)
	vmi.Status = kubevirt.VirtualMachineInstanceStatus{
		Phase: kubevirt.VMIRunning, NodeName: v.node, EvacuationNodeName: v.mark,
		Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: map[bool]string{false: "False", true: "True"}[v.migratable], LastProbeTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
	}
	if !v.noStatus {
		kit.Must(t, v.Status().Update(t.Context(), vmi))
	}
	v.pod()
	return &v
}

func (v *vm) launcher() string { return "virt-launcher-" + v.name }

// launcherPod returns an object with the name of the launcher pod, for changes.
func (v *vm) launcherPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.NS, Name: v.launcher()}}
}

func (v *vm) readPod() *corev1.Pod { v.Helper(); return rig.Read[corev1.Pod](v.Space, v.launcher()) }

// pod makes the launcher pod with the status of a running one.
func (v *vm) pod() *corev1.Pod {
	v.Helper()
	p := v.Launcher(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: v.name, UID: types.UID(v.uid)}}, v.node)
	if v.lateLabel {
		delete(p.Labels, kubevirt.AppLabel)
	}
	v.Make(p, rig.PodRuns)
	return p
}

// newPod makes a running pod that is no launcher pod.
func (v *vm) newPod(meta metav1.ObjectMeta) *corev1.Pod {
	v.Helper()
	meta.Namespace = v.NS
	p := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: v.node, Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	v.Make(p, rig.PodRuns)
	return p
}

// again makes the launcher pod anew if it was evicted. It returns false, for use in a
// condition.
func (v *vm) again() bool {
	v.Helper()
	if !v.podThere() {
		v.pod()
	}
	return false
}

func (v *vm) podThere() bool {
	v.Helper()
	return rig.Find[corev1.Pod](v.Space, v.launcher()) != nil
}

func (v *vm) get() *kubevirt.VirtualMachineInstance {
	v.Helper()
	return rig.Read[kubevirt.VirtualMachineInstance](v.Space, v.name)
}

// answer is what the client of an eviction gets. Code 0 means that the eviction took place.
type answer struct {
	code  int32
	text  string
	retry int32
}

func (v *vm) evict(change ...func(*policyv1.Eviction)) answer {
	v.Helper()
	return v.evictPod(v.launcher(), change...)
}

// evictPod evicts any pod of the VM's namespace.
func (v *vm) evictPod(name string, change ...func(*policyv1.Eviction)) answer {
	v.Helper()
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: v.NS, Name: name}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: new(int64)}}
	for _, c := range change {
		c(e)
	}
	return v.told(e)
}

// told creates an eviction with these options and returns the answer.
func (v *vm) told(e *policyv1.Eviction, options ...client.SubResourceCreateOption) answer {
	v.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
	err := v.SubResource("eviction").Create(v.Context(), pod, e, options...)
	if err == nil {
		return answer{}
	}
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		v.Fatalf("%v", err)
	}
	a := answer{code: s.Status().Code, text: s.Status().Message}
	if s.Status().Details != nil {
		a.retry = s.Status().Details.RetryAfterSeconds
	}
	return a
}

// budget makes the VM's budget, with the status that Kubernetes' disruption controller
// would write.
func (v *vm) budget(change ...func(*policyv1.PodDisruptionBudget)) {
	v.Helper()
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.NS, Name: "kubevirt-disruption-budget-" + v.uid},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{kubevirt.CreatedByLabel: v.uid}}},
	}
	for _, c := range change {
		c(pdb)
	}
	v.Make(pdb, "")
	pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, ExpectedPods: 1, DesiredHealthy: 1, CurrentHealthy: 1}
	for _, c := range change {
		c(pdb)
	}
	kit.Must(v, v.Status().Update(v.Context(), pdb))
}

// status merges JSON into the status of the VMI.
func (v *vm) status(status string) {
	v.Helper()
	v.SetStatus(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: v.NS, Name: v.name}}, status)
}
