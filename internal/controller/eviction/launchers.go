package eviction

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/index"
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/internal/evacuation"
	"github.com/vmgrace/vmgrace/internal/launcher"
)

// launchers is the handler of new pods. It makes a launcher pod's grace period as long as
// its VM's shutdown may take, and links the pod to the VMI that it names, if it states no UID.
type launchers struct{ Config }

// Handle answers an AdmissionReview of a pod that is created. An unreadable VMI causes a
// warning, not a rejection.
func (h *launchers) Handle(ctx context.Context, req admission.Request) admission.Response {
	ctx, cancel := answerContext(ctx)
	defer cancel()
	pod, answer := read(req)
	if answer != nil {
		return *answer
	}
	vmi, answer := h.linked(ctx, req, pod)
	if answer != nil {
		return *answer
	}
	set := h.Settings.Get()
	g := evacuation.GraceFor(vmi, pod.Spec.TerminationGracePeriodSeconds, &set)
	steps := []patch.Operation{
		{Op: "add", Path: "/spec/terminationGracePeriodSeconds", Value: g.Seconds},
		{Op: "add", Path: "/metadata/labels", Value: pod.Labels},
		{Op: "add", Path: "/metadata/annotations", Value: annotations(pod, g)},
	}
	if len(pod.OwnerReferences) > 0 {
		steps = append(steps, patch.Operation{Op: "add", Path: "/metadata/ownerReferences", Value: pod.OwnerReferences})
	}
	change, err := json.Marshal(steps)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	response := admission.Allowed("")
	response.Patch, response.PatchType = change, new(admissionv1.PatchTypeJSONPatch)
	h.Meter.Launcher(result(pod, g))
	if !matchedByEvictionWebhook(pod) {
		response = response.WithWarnings("vmgrace: a launcher pod whose name does not begin with " + kubevirt.LauncherPrefix + " can be evicted without its VM being moved")
	}
	return response.WithWarnings(shortProbes(pod, g.Seconds)...)
}

// linked returns the VMI of a launcher pod that is created, and makes the pod its launcher, or else
// what is answered.
func (h *launchers) linked(ctx context.Context, req admission.Request, pod *corev1.Pod) (*kubevirt.VirtualMachineInstance, *admission.Response) {
	if p := facts(pod); !p.OfVM() || p.VMIUID != "" {
		return h.owner(ctx, req, pod)
	}
	vm := client.ObjectKey{Namespace: req.Namespace, Name: pod.Annotations[kubevirt.DomainAnnotation]}
	vmi, answer := h.named(ctx, vm)
	if answer != nil {
		return nil, answer
	}
	all, err := index.NamingNow(ctx, h.Live, vm)
	if err != nil {
		h.Meter.Launcher("failed")
		h.Log.Warn("a launcher pod is created without its VMI's UID: the VMI's other launchers cannot be read", "namespace", vm.Namespace, "vmi", vm.Name, "err", err)
		return nil, new(admission.Allowed("").WithWarnings("vmgrace: this pod is not linked to its VMI yet: " + err.Error()))
	}
	pods := index.LauncherFacts(all)
	if other := launcher.Living(vmi, pods); other != "" {
		h.Meter.Launcher("not_ours")
		return nil, new(admission.Denied(fmt.Sprintf("vmgrace: VMI %s has launcher pod %s already: its guest would run twice", vm.Name, other)))
	}
	if why := launcher.Refusal(vmi, pods); why != "" {
		h.Meter.Launcher("not_ours")
		return nil, new(admission.Allowed("").WithWarnings(fmt.Sprintf("vmgrace: this pod is no launcher of VMI %s, which %s", vm.Name, why)))
	}
	index.Link(pod, vmi)
	return vmi, nil
}

// read returns the pod that is created, or else what is answered.
func read(req admission.Request) (*corev1.Pod, *admission.Response) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return nil, new(admission.Errored(http.StatusBadRequest, fmt.Errorf("the Pod cannot be read: %w", err)))
	}
	return pod, nil
}

// owner returns the VMI that a launcher pod was created by, or else what is answered.
func (c *Config) owner(ctx context.Context, req admission.Request, pod *corev1.Pod) (*kubevirt.VirtualMachineInstance, *admission.Response) {
	p := facts(pod)
	if !p.OfVM() || p.VMIUID == "" {
		c.Meter.Launcher("not_ours")
		return nil, new(admission.Allowed(""))
	}
	vmi, answer := c.named(ctx, client.ObjectKey{Namespace: req.Namespace, Name: p.VMI})
	if answer == nil && string(vmi.UID) != p.VMIUID {
		c.Meter.Launcher("not_ours")
		return nil, new(admission.Allowed(""))
	}
	return vmi, answer
}

// named returns the VMI that a launcher pod names, or else what is answered.
func (c *Config) named(ctx context.Context, key client.ObjectKey) (*kubevirt.VirtualMachineInstance, *admission.Response) {
	vmi, err := c.vmi(ctx, key)
	switch {
	case err != nil:
		c.Meter.Launcher("failed")
		c.Log.Warn("a launcher pod is created with the grace period that it has: its VMI cannot be read", "namespace", key.Namespace, "vmi", key.Name, "err", err)
		return nil, new(admission.Allowed("").WithWarnings("vmgrace: the VMI cannot be read, terminationGracePeriodSeconds is left as it is: " + err.Error()))
	case vmi == nil:
		c.Meter.Launcher("not_ours")
		return nil, new(admission.Allowed(""))
	}
	return vmi, nil
}

// shortProbes returns a warning for each container with a probe that gives it less time than
// its VM's shutdown may take. If the probe fails, its time replaces the pod's.
func shortProbes(pod *corev1.Pod, seconds int64) (warnings []string) {
	for _, c := range pod.Spec.Containers {
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.StartupProbe} {
			if probe == nil || probe.TerminationGracePeriodSeconds == nil || *probe.TerminationGracePeriodSeconds >= seconds {
				continue
			}
			warnings = append(warnings, fmt.Sprintf("vmgrace: a probe of container %q has a terminationGracePeriodSeconds of %d, and the VM's shutdown may take %d: where the probe fails the guest loses its grace period",
				c.Name, *probe.TerminationGracePeriodSeconds, seconds))
		}
	}
	return warnings
}

func result(pod *corev1.Pod, g evacuation.LauncherGrace) string {
	if stated := pod.Spec.TerminationGracePeriodSeconds; stated != nil && *stated == g.Seconds {
		return "long_enough"
	}
	return "padded"
}

// annotations returns the pod's annotations with those to add.
func annotations(pod *corev1.Pod, g evacuation.LauncherGrace) map[string]string {
	all := map[string]string{kubevirt.RequestEvictOnlyAnnotation: ""} // the descheduler only evicts it, and does not assume that it has ended
	maps.Copy(all, pod.Annotations)
	maps.Copy(all, g.Annotations)
	return all
}

// matchedByEvictionWebhook reports whether the eviction webhook's matchConditions match
// the pod: an Eviction has only the pod's name.
func matchedByEvictionWebhook(p *corev1.Pod) bool {
	name := p.Name
	if name == "" {
		name = p.GenerateName
	}
	return strings.HasPrefix(name, kubevirt.LauncherPrefix)
}
