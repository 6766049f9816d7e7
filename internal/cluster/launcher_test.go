//go:build !unit

package cluster_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

// linker starts the controller that links launchers. No webhook runs here.
func (w world) linker(args ...string) *node.Process {
	w.Helper()
	return w.controller(append([]string{"--leader-elect=false", "--controllers=launcher"}, args...)...)
}

// applied makes a VMI as deploy/examples/vm.yaml has it: without a node.
func (w world) applied(name string) *kubevirt.VirtualMachineInstance {
	w.Helper()
	v := w.VMI(name, "", kubevirt.StrategyLiveMigrate)
	v.Labels = nil
	w.make(v)
	return v
}

// named makes a pod that names a VMI, without its UID.
func (w world) named(pod, vmi string) *corev1.Pod {
	w.Helper()
	p := w.Launcher(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: vmi}}, "")
	p.Name = pod
	delete(p.Labels, kubevirt.CreatedByLabel)
	w.make(p)
	return p
}

func (w world) podNow(name string) *corev1.Pod {
	w.Helper()
	return rig.Read[corev1.Pod](w.Space, name)
}

// becomes waits until a VMI is in a phase on a node, in status and label.
func (w world) becomes(v *kubevirt.VirtualMachineInstance, phase kubevirt.VMIPhase, on string) {
	w.Helper()
	w.eventually(v.Name+" is "+string(phase)+" on "+on, func() bool {
		now := w.read(v)
		return now.Status.Phase == phase && now.Status.NodeName == on && now.Labels[kubevirt.NodeNameLabel] == on
	})
}

func (w world) linkedTo(pod string, v *kubevirt.VirtualMachineInstance) {
	w.Helper()
	w.eventually(pod+" is linked to "+v.Name, func() bool { return w.podNow(pod).Labels[kubevirt.CreatedByLabel] == string(v.UID) })
	p := w.podNow(pod)
	if !metav1.IsControlledBy(p, v) || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].BlockOwnerDeletion != nil || p.Annotations["vmgrace.io/linked"] != string(v.UID) {
		w.Errorf("%s: %+v", pod, p.ObjectMeta)
	}
}

// bound plays the scheduler.
func (w world) bound(p *corev1.Pod, to string) {
	w.Helper()
	w.must(w.SubResource("binding").Create(w.Context(), p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: to}}))
}

// Given a VMI and a pod that names it, made in either order, and no webhook. Then the pod becomes
// the VMI's launcher, and the VMI's phase and node follow the pod: while it finds no node, while
// its image is pulled, while it runs, once it has ended. Otherwise a user would have to copy UIDs,
// and no agent would know whose VM this is.
func TestAVMIAndItsLauncherFindEachOther(t *testing.T) {
	w := given(t)
	w.node("n1")
	w.linker()
	first := w.applied("first")
	w.becomes(first, kubevirt.VMIPending, "")
	p := w.named("virt-launcher-first", "first")
	w.linkedTo(p.Name, first)
	w.becomes(first, kubevirt.VMIScheduling, "")
	w.SetStatus(p, `{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable"}]}`)
	w.bound(p, "n1")
	w.becomes(first, kubevirt.VMIScheduling, "n1")
	w.SetStatus(p, rig.PodRuns)
	w.becomes(first, kubevirt.VMIRunning, "n1")
	w.event("first", "Started", "virt-launcher-first runs on node n1")
	w.Change(first, `{"metadata":{"labels":{"kubevirt.io/nodeName":"n0"}}}`) // as a file that states a former node
	w.becomes(first, kubevirt.VMIRunning, "n1")
	w.SetStatus(p, `{"phase":"Succeeded"}`)
	w.becomes(first, kubevirt.VMISucceeded, "n1")
	w.event("first", "Stopped", "has ended")

	pod := w.named("virt-launcher-second", "second")
	w.bound(pod, "n1")
	w.SetStatus(pod, rig.PodRuns)
	alone := w.named("virt-launcher-alone", "nobody")
	second := w.applied("second")
	w.linkedTo(pod.Name, second)
	w.event("second", "LauncherLinked", pod.Name)
	w.becomes(second, kubevirt.VMIRunning, "n1")
	w.SetStatus(pod, `{"phase":"Failed"}`) // as kubelet evicts
	w.becomes(second, kubevirt.VMIFailed, "n1")
	w.event("second", "Stopped", "has failed")
	if p := w.podNow(alone.Name); p.Labels[kubevirt.CreatedByLabel] != "" || len(p.OwnerReferences) > 0 {
		t.Errorf("a pod that names a VMI that never came: %+v", p.ObjectMeta)
	}
}

// Given a VMI with a launcher. When further pods name it, or the launcher is made anew, then they
// are not linked, and an Event says why. Otherwise one VM would run twice.
func TestAVMIHasOneLauncherInItsLife(t *testing.T) {
	w := given(t)
	w.node("n1")
	controller := w.linker()
	v := w.applied("vm")
	p := w.named("virt-launcher-vm", "vm")
	w.linkedTo(p.Name, v)
	w.bound(p, "n1")
	w.SetStatus(p, rig.PodRuns)
	w.becomes(v, kubevirt.VMIRunning, "n1")
	w.named("virt-launcher-second", "vm")
	w.event("vm", "LauncherNotLinked", "pod virt-launcher-second is no launcher of this VMI, which has launcher pod virt-launcher-vm already")

	// The launcher is gone at once, and nobody saw how it ended.
	controller.Kill()
	w.must(w.Delete(t.Context(), p, client.GracePeriodSeconds(0)))
	w.linker()
	w.becomes(v, kubevirt.VMIFailed, "n1")
	w.event("vm", "Stopped", "is gone, and how it ended is not known")
	if p := w.podNow("virt-launcher-second"); p.Labels[kubevirt.CreatedByLabel] != "" {
		t.Error("a second pod was linked")
	}

	// One that has ended and is gone at once, as kubelet removes it.
	w.applied("brief")
	brief := w.named("virt-launcher-brief", "brief")
	b := w.read(&kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "brief"}})
	w.linkedTo(brief.Name, b)
	w.bound(brief, "n1")
	w.SetStatus(brief, rig.PodRuns)
	w.becomes(b, kubevirt.VMIRunning, "n1")
	w.SetStatus(brief, `{"phase":"Succeeded"}`)
	w.must(w.Delete(t.Context(), brief, client.GracePeriodSeconds(0)))
	w.becomes(b, kubevirt.VMISucceeded, "n1")
}

// Given a controller that was killed when it had linked a pod, and a VMI with a finalizer of
// somebody's. Then the next one goes on from what the API server shows. A VMI that is being deleted
// gets no launcher.
func TestLinkingGoesOnAfterARestart(t *testing.T) {
	w := given(t)
	w.node("n1")
	v := w.applied("vm")
	p := w.named("virt-launcher-vm", "vm")
	w.Change(p, `{"metadata":{"labels":{"kubevirt.io/created-by":"`+string(v.UID)+`"},"annotations":{"vmgrace.io/linked":"`+string(v.UID)+`"}}}`)
	w.bound(p, "n1")
	w.must(w.Status().Patch(t.Context(), v, rig.Merge(`{"status":{"phase":"Scheduling","nodeName":"n1","vmgraceLauncher":{"pod":"virt-launcher-vm","podUID":"%s"},"unknown":"kept"}}`, p.UID), client.FieldOwner(index.Manager)))
	ending := w.applied("ending")
	w.Change(ending, `{"metadata":{"finalizers":["someone/else"]}}`)
	t.Cleanup(func() { w.must(w.Patch(rig.After(t), ending, rig.Merge(`{"metadata":{"finalizers":null}}`))) })
	w.must(w.Delete(t.Context(), ending))
	late := w.named("virt-launcher-ending", "ending")
	w.linker()
	w.becomes(v, kubevirt.VMIScheduling, "n1") // the label was not written yet
	w.SetStatus(p, rig.PodRuns)
	w.becomes(v, kubevirt.VMIRunning, "n1")
	w.event("ending", "LauncherNotLinked", "which is being deleted")
	if w.podNow(late.Name).Labels[kubevirt.CreatedByLabel] != "" {
		t.Error("a VMI that is being deleted has got a launcher")
	}
	if kept := api.Kubectl(t, "get", "vmi", "-n", w.ns, "vm", "-o", "jsonpath={.status.unknown}"); kept != "kept" {
		t.Errorf("a field of others is %q", kept)
	}
}
