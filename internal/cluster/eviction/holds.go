package eviction

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// holds is the handler of new pods in clusters with KubeVirt. It gives the launcher pods of VMs
// that may be moved what it takes to hold their shutdowns: a launcher directory, a preStop
// hook that waits for the agent's word, and more time. All other pods stay as they are.
type holds struct{ Config }

// Names of KubeVirt's container with the guest, and of the launcher directory's volume.
const (
	guestContainer  = "compute"
	fsContainers    = "virtiofs-" // the prefix of those that serve the guest file systems
	reasonNotHeld   = "LauncherNotHeld"
	launcherDirSize = 1 << 20
)

// Handle answers an AdmissionReview of a pod that is created. It never rejects one that it can
// read.
func (h *holds) Handle(ctx context.Context, req admission.Request) admission.Response {
	ctx, cancel := answerContext(ctx)
	defer cancel()
	set := h.Settings.Get()
	if !set.Holds() {
		return admission.Allowed("")
	}
	pod, answer := read(req)
	if answer != nil {
		return *answer
	}
	vmi, answer := h.owner(ctx, req, pod)
	if answer != nil {
		return *answer
	}
	at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == guestContainer })
	again := at >= 0 && hooked(&pod.Spec.Containers[at])
	allowed := ""
	if again {
		allowed = pod.Annotations[evacuation.AllowanceAnnotation]
	}
	g := evacuation.GraceBeside(vmi, pod.Spec.TerminationGracePeriodSeconds, allowed, &set)
	if g.Annotations == nil { // it is never moved
		h.Meter.Launcher("left")
		return admission.Allowed("")
	}
	if why := obstacle(pod, at); why != "" && !again {
		h.Meter.Launcher("left")
		text := "the shutdown of its new launcher pod cannot be held while the VM is moved: " + why
		if req.DryRun == nil || !*req.DryRun {
			h.Events.Eventf(vmi, nil, corev1.EventTypeWarning, reasonNotHeld, "Create", "%s", text)
		}
		return admission.Allowed("").WithWarnings("vmgrace: " + text)
	}
	change, err := json.Marshal(heldPatch(pod, at, g))
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	h.Meter.Launcher("held")
	response := admission.Allowed("")
	response.Patch, response.PatchType = change, new(admissionv1.PatchTypeJSONPatch)
	return response.WithWarnings(shortProbes(pod, g.Seconds)...)
}

// hooked reports whether a container has the hook already: the API server asks again after a
// change by another webhook.
func hooked(c *corev1.Container) bool {
	return c.Lifecycle != nil && c.Lifecycle.PreStop != nil && isHook(c.Lifecycle.PreStop)
}

// obstacle returns why a pod cannot get the hook in its container at an index, or "".
func obstacle(pod *corev1.Pod, at int) string {
	if at < 0 {
		return "it has no container " + guestContainer
	}
	c := &pod.Spec.Containers[at]
	switch {
	case c.Lifecycle != nil && c.Lifecycle.PreStop != nil:
		return "its container " + guestContainer + " has a preStop hook of its own"
	case slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == launcherpod.DirectoryVolume }):
		return "it has a volume " + launcherpod.DirectoryVolume + " of its own"
	case slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == launcherDir }):
		return "its container " + guestContainer + " has a mount at " + launcherDir
	default:
		return ""
	}
}

// heldPatch returns what a launcher pod needs whose container at an index has the guest. The
// file systems' containers wait with it: kubelet signals all containers of a pod at once, and a
// guest whose virtiofsd has ended hangs, and cannot be moved.
func heldPatch(pod *corev1.Pod, at int, g evacuation.LauncherGrace) []patch.Operation {
	notes := map[string]string{}
	maps.Copy(notes, pod.Annotations)
	maps.Copy(notes, g.Annotations)
	steps := []patch.Operation{
		{Op: "add", Path: "/spec/terminationGracePeriodSeconds", Value: g.Seconds},
		{Op: "add", Path: "/metadata/annotations", Value: notes},
	}
	if !hooked(&pod.Spec.Containers[at]) { // else with the directory
		directory := corev1.Volume{Name: launcherpod.DirectoryVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(launcherDirSize, resource.BinarySI),
		}}}
		steps = append(steps, added("/spec/volumes", len(pod.Spec.Volumes), directory))
	}
	hook := hook(g.Annotations[evacuation.AllowanceAnnotation])
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; i == at || strings.HasPrefix(c.Name, fsContainers) {
			steps = append(steps, waits(c, fmt.Sprintf("/spec/containers/%d", i), hook)...)
		}
	}
	return steps
}

// waits returns what has the container at a path wait, nothing if it has a hook of its own.
func waits(c *corev1.Container, path string, hook *corev1.LifecycleHandler) (steps []patch.Operation) {
	switch {
	case c.Lifecycle == nil:
		steps = append(steps, patch.Operation{Op: "add", Path: path + "/lifecycle", Value: corev1.Lifecycle{PreStop: hook}})
	case c.Lifecycle.PreStop == nil || hooked(c):
		steps = append(steps, patch.Operation{Op: "add", Path: path + "/lifecycle/preStop", Value: hook})
	default:
		return nil
	}
	if hooked(c) { // with the directory
		return steps
	}
	return append(steps, added(path+"/volumeMounts", len(c.VolumeMounts), corev1.VolumeMount{Name: launcherpod.DirectoryVolume, MountPath: launcherDir}))
}

// added returns the step that appends an item to a list that has n.
func added[T any](path string, n int, item T) patch.Operation {
	if n == 0 {
		return patch.Operation{Op: "add", Path: path, Value: []T{item}}
	}
	return patch.Operation{Op: "add", Path: path + "/-", Value: item}
}
