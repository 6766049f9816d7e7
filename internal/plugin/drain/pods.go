package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// maxConcurrent is the number of concurrent evictions, and of concurrent reads.
const maxConcurrent = 16

// podOf converts a pod for the plan, without DaemonSet and volumes.
func podOf(p *corev1.Pod) drain.Pod {
	d := drain.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name, Grace: 30 * time.Second,
		Policy:   drain.Policy(p.Labels[drain.PolicyLabel]),
		Launcher: p.Labels[kubevirt.AppLabel] == kubevirt.LauncherApp,
		Hotplug:  p.Labels[kubevirt.AppLabel] == kubevirt.HotplugApp,
		Ended:    Ended(p),
	}
	if p.Spec.Priority != nil {
		d.Priority = *p.Spec.Priority
	}
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		d.Grace = time.Duration(*s) * time.Second
	}
	if c := metav1.GetControllerOf(p); c != nil {
		d.Controller, d.Owner = string(c.UID), c.Kind+" "+c.Name
	}
	if p.DeletionTimestamp != nil {
		d.DeletedAt = p.DeletionTimestamp.Time
	}
	_, d.Mirror = p.Annotations[corev1.MirrorPodAnnotationKey]
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case v.EmptyDir == nil:
		case isLauncherDirectory(v):
			d.OfVM = true
			d.EmptyDir = d.EmptyDir || !d.Launcher
		default:
			d.EmptyDir = true
		}
	}
	d.OfVM = d.OfVM || ofVM(p)
	return d
}

// isLauncherDirectory reports whether a volume is a launcher directory, which has no
// data.
func isLauncherDirectory(v *corev1.Volume) bool {
	return v.Name == launcherpod.DirectoryVolume && v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory
}

// ofVM reports whether anything in a pod's metadata says that it belongs to a VM.
func ofVM(p *corev1.Pod) bool {
	app := p.Labels[kubevirt.AppLabel]
	return app == kubevirt.LauncherApp || app == kubevirt.HotplugApp ||
		p.Labels[kubevirt.CreatedByLabel] != "" || p.Annotations[kubevirt.DomainAnnotation] != "" ||
		strings.HasPrefix(p.Name, kubevirt.LauncherPrefix) || strings.HasPrefix(p.Name, kubevirt.HotplugPrefix)
}

// Ended reports whether a pod has ended: it runs no guest.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ofDaemonSet returns the name of the DaemonSet that controls the pod, if one does.
func ofDaemonSet(p *corev1.Pod) (string, bool) {
	c := metav1.GetControllerOf(p)
	if c == nil || c.Kind != "DaemonSet" || c.APIVersion != appsv1.SchemeGroupVersion.String() {
		return "", false
	}
	return c.Name, true
}

// claims returns the volume claims of a pod, by namespace/name. The value is true for a
// claim that is deleted with the pod.
func claims(p *corev1.Pod) map[string]bool {
	all := map[string]bool{}
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			all[p.Namespace+"/"+v.PersistentVolumeClaim.ClaimName] = false
		case v.Ephemeral != nil:
			all[p.Namespace+"/"+p.Name+"-"+v.Name] = true
		}
	}
	return all
}

// describe converts pods, and reads their DaemonSets and volumes from the API server.
func (n *node) describe(ctx context.Context, pods []corev1.Pod) ([]drain.Pod, error) {
	all := make([]drain.Pod, len(pods))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrent)
	for i := range pods {
		group.Go(func() (err error) {
			p := &pods[i]
			all[i] = podOf(p)
			if name, is := ofDaemonSet(p); is && !all[i].Ended {
				all[i].DaemonSet, all[i].DaemonSetError = n.daemonSet(ctx, client.ObjectKey{Namespace: p.Namespace, Name: name})
				return nil // its volumes are not waited for
			}
			all[i].Volumes, err = n.volumes(ctx, p)
			return err
		})
	}
	return all, group.Wait()
}

func (n *node) daemonSet(ctx context.Context, key client.ObjectKey) (drain.DaemonSetState, string) {
	switch err := n.live.Get(ctx, key, &appsv1.DaemonSet{}); {
	case err == nil:
		return drain.DaemonSetThere, ""
	case apierrors.IsNotFound(err):
		return drain.DaemonSetGone, err.Error()
	default:
		return drain.DaemonSetUnknown, err.Error()
	}
}

// volumes reads the bound claims of a pod. An unbound or missing claim has nothing to
// detach. Volumes that are never attached, such as host paths and NFS, are included: no
// VolumeAttachment or node status will name them. In-tree volumes that were migrated to
// CSI are found by their VolumeAttachments.
func (n *node) volumes(ctx context.Context, p *corev1.Pod) (all []drain.Volume, err error) {
	for claim, ephemeral := range claims(p) {
		pvc := &corev1.PersistentVolumeClaim{}
		err := n.live.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: claim[len(p.Namespace)+1:]}, pvc)
		if apierrors.IsNotFound(err) || err == nil && pvc.Spec.VolumeName == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("volume claim %s of pod %s: %w", claim, p.Name, err)
		}
		pv := &corev1.PersistentVolume{}
		switch err := n.live.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, pv); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("volume %s of pod %s/%s: %w", pvc.Spec.VolumeName, p.Namespace, p.Name, err)
		}
		handle := ""
		if pv.Spec.CSI != nil {
			handle = "kubernetes.io/csi/" + pv.Spec.CSI.Driver + "^" + pv.Spec.CSI.VolumeHandle
		}
		all = append(all, drain.Volume{Claim: claim, Name: pv.Name, Handle: handle, Ephemeral: ephemeral})
	}
	slices.SortFunc(all, func(a, b drain.Volume) int { return strings.Compare(a.Claim, b.Claim) })
	return all, nil
}
