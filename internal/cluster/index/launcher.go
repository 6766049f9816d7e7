package index

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/internal/rules/launcher"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// Naming returns the launcher pods that name a VMI, in any state, from the cache. They share their
// fields with it: callers must not change them.
func Naming(ctx context.Context, r client.Reader, vm types.NamespacedName) ([]corev1.Pod, error) {
	var all corev1.PodList
	if err := r.List(ctx, &all, client.InNamespace(vm.Namespace), client.MatchingFields{byDomain: vm.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("launcher pods: %w", err)
	}
	return all.Items, nil
}

// NamingNow is Naming from the API server.
func NamingNow(ctx context.Context, live client.Reader, vm types.NamespacedName) ([]corev1.Pod, error) {
	var all corev1.PodList
	if err := live.List(ctx, &all, client.InNamespace(vm.Namespace), client.MatchingLabels{kubevirt.AppLabel: kubevirt.LauncherApp}); err != nil {
		return nil, fmt.Errorf("launcher pods: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return p.Annotations[kubevirt.DomainAnnotation] != vm.Name }), nil
}

// NamingAsCached is Naming from the API server, but for pods that the cache does not have: a list of
// all of a namespace would make the creation of each pod as slow as there are pods.
func NamingAsCached(ctx context.Context, cached, live client.Reader, vm types.NamespacedName) (all []corev1.Pod, err error) {
	known, err := Naming(ctx, cached, vm)
	if err != nil {
		return nil, err
	}
	for i := range known {
		if Ended(&known[i]) { // for good
			all = append(all, known[i])
			continue
		}
		p := corev1.Pod{}
		switch err := live.Get(ctx, client.ObjectKeyFromObject(&known[i]), &p); {
		case err == nil:
			all = append(all, p)
		case !Gone(err, known[i].Name):
			return nil, fmt.Errorf("launcher pod %s: %w", known[i].Name, err)
		}
	}
	return all, nil
}

// LauncherFacts returns launcher pods as inputs of the rules.
func LauncherFacts(pods []corev1.Pod) []launcher.Pod {
	all := make([]launcher.Pod, 0, len(pods))
	for i := range pods {
		p := &pods[i]
		uid, how := p.Labels[kubevirt.CreatedByLabel], howEnded(p)
		all = append(all, launcher.Pod{
			Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Created: p.CreationTimestamp.Time,
			VMIUID: uid, Linked: uid != "" && p.Annotations[launcher.LinkedAnnotation] == uid, Owned: OwnedBy(p, uid), Target: p.Labels[kubevirt.MigrationJobLabel] != "",
			Ready: ready(p), Deleting: p.DeletionTimestamp != nil, Ended: Ended(p), Succeeded: p.Status.Phase == corev1.PodSucceeded && how == "", How: how,
		})
	}
	return all
}

// OwnedBy reports whether the object with a UID is an owner of the pod. The cache has no owners.
func OwnedBy(p *corev1.Pod, uid string) bool {
	return slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == uid })
}

// howEnded returns what kubelet says of the end of a pod that has failed: why it ended the pod, and
// how containers have ended.
func howEnded(p *corev1.Pod) string {
	var all []string
	if p.Status.Reason != "" {
		all = append(all, p.Status.Reason)
	}
	for _, c := range p.Status.ContainerStatuses {
		t := c.State.Terminated
		switch {
		case t == nil:
			continue
		case t.Message == launcherpod.EndForced:
			all = append(all, "its guest was destroyed at its deadline")
			continue
		case t.ExitCode == 0:
			continue
		}
		text := fmt.Sprintf("container %s: exit code %d", c.Name, t.ExitCode)
		if t.Reason != "" && t.Reason != "Error" {
			text += " (" + t.Reason + ")"
		}
		all = append(all, text)
	}
	return oneline.Cut(strings.Join(all, ", "), maxHow)
}

// maxHow bounds what is said of a pod's containers.
const maxHow = 256

// Manager is this program's name in the managedFields of what it writes.
const Manager = "vmgrace-cluster-controller"

// PhaseOfOthers reports whether another program has written the phase of a VMI last.
func PhaseOfOthers(vmi *kubevirt.VirtualMachineInstance) bool {
	return slices.ContainsFunc(vmi.ManagedFields, WritesPhase)
}

// WritesPhase reports whether a manager of a VMI's fields that is not this program owns the phase.
func WritesPhase(m metav1.ManagedFieldsEntry) bool {
	var owned struct {
		Status struct {
			Phase any `json:"f:phase"`
		} `json:"f:status"`
	}
	return m.Manager != Manager && m.FieldsV1 != nil && json.Unmarshal(m.FieldsV1.GetRawBytes(), &owned) == nil && owned.Status.Phase != nil
}

func ready(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Link makes a pod the launcher of a VMI, in memory. blockOwnerDeletion would need a right to the
// VMI's finalizers where the API server enforces that, and a launcher does not need it.
func Link(p *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) {
	p.Labels, p.Annotations = maps.Clone(p.Labels), maps.Clone(p.Annotations) // neither is empty: it is a launcher that names a VMI
	p.Labels[kubevirt.CreatedByLabel] = string(vmi.UID)
	p.Annotations[launcher.LinkedAnnotation] = string(vmi.UID)
	if OwnedBy(p, string(vmi.UID)) {
		return
	}
	owner := metav1.OwnerReference{APIVersion: kubevirt.GroupVersion().String(), Kind: "VirtualMachineInstance", Name: vmi.Name, UID: vmi.UID}
	if metav1.GetControllerOf(p) == nil {
		owner.Controller = new(true)
	}
	p.OwnerReferences = append(slices.Clone(p.OwnerReferences), owner)
}
