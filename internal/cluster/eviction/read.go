package eviction

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/launcher"
)

// pod reads a pod from the API server. It returns nil if there is none.
func (c *Config) pod(ctx context.Context, key client.ObjectKey) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.Live.Get(ctx, key, pod)
	switch {
	case index.Gone(err, key.Name):
		return nil, nil //nolint:nilnil // it does not exist
	case err != nil:
		return nil, err
	default:
		return pod, nil
	}
}

// vmi reads a VMI from the API server. It returns nil if the VMI does not exist and its
// CRD does.
func (c *Config) vmi(ctx context.Context, key client.ObjectKey) (*kubevirt.VirtualMachineInstance, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	err := c.Live.Get(ctx, key, vmi)
	switch {
	case err == nil:
		return vmi, nil
	case !index.Gone(err, key.Name):
		return nil, err
	default:
		return nil, index.CRDExists(ctx, c.Live)
	}
}

// emptied reports whether the VM's node is unschedulable or has the drain taint, and whether somebody
// empties it by another one, as far as the cache shows. The evacuation controller adds what it shows later.
func (c *Config) emptied(ctx context.Context, s *subject, drainTaint string) (cordoned, tainted bool, err error) {
	if !c.Nodes {
		return false, false, nil
	}
	from := c.Cached
	if !c.Synced() {
		from = c.Live
	}
	node := &corev1.Node{}
	err = from.Get(ctx, client.ObjectKey{Name: s.vmi.Node()}, node)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return false, false, nil // not known to be
	case err != nil:
		return false, false, fmt.Errorf("its node: %w", err)
	default:
		return node.Spec.Unschedulable || index.Drained(node, drainTaint), index.Tainted(node, []corev1.Pod{*s.pod}), nil
	}
}

// facts returns a pod's inputs of evacuation.Admit.
func facts(p *corev1.Pod) evacuation.Pod {
	return evacuation.Pod{
		Launcher: p.Labels[kubevirt.AppLabel] == kubevirt.LauncherApp,
		Finished: index.Ended(p),
		Unbegun:  p.Status.Phase == corev1.PodPending && (p.Spec.NodeName == "" || len(p.Status.ContainerStatuses) > 0) && !begun(p.Status.InitContainerStatuses) && !begun(p.Status.ContainerStatuses),
		Deleting: p.DeletionTimestamp != nil,
		Settling: evacuation.Settling(time.Now(), p.CreationTimestamp.Time, readySince(p)),
		Name:     p.Name,
		Node:     p.Spec.NodeName,
		VMI:      p.Annotations[kubevirt.DomainAnnotation],
		VMIUID:   p.Labels[kubevirt.CreatedByLabel],
		Unowned:  p.Annotations[launcher.LinkedAnnotation] != "" && !index.OwnedBy(p, p.Labels[kubevirt.CreatedByLabel]),
	}
}

// begun reports whether a container has been started, as its kubelet says.
func begun(all []corev1.ContainerStatus) bool {
	return slices.ContainsFunc(all, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil || c.RestartCount > 0
	})
}

// readySince returns since when a pod is ready, nil if it is not.
func readySince(p *corev1.Pod) *time.Time {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return &c.LastTransitionTime.Time
		}
	}
	return nil
}
