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
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/internal/evacuation"
)

// launchers is the handler of new pods. It makes a launcher pod's grace period as long as
// its VM's shutdown may take.
type launchers struct{ Config }

// Handle answers an AdmissionReview of a pod that is created. An unreadable VMI causes a
// warning, not a rejection.
func (h *launchers) Handle(ctx context.Context, req admission.Request) admission.Response {
	ctx, cancel := answerContext(ctx)
	defer cancel()
	pod, vmi, answer := h.created(ctx, req)
	if answer != nil {
		return *answer
	}
	set := h.Settings.Get()
	g := evacuation.GraceFor(vmi, pod.Spec.TerminationGracePeriodSeconds, &set)
	change, err := json.Marshal([]patch.Operation{
		{Op: "add", Path: "/spec/terminationGracePeriodSeconds", Value: g.Seconds},
		{Op: "add", Path: "/metadata/annotations", Value: annotations(pod, g)},
	})
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

// created returns the launcher pod that is created and its VMI, or else what is answered.
func (c *Config) created(ctx context.Context, req admission.Request) (*corev1.Pod, *kubevirt.VirtualMachineInstance, *admission.Response) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return nil, nil, new(admission.Errored(http.StatusBadRequest, fmt.Errorf("the Pod cannot be read: %w", err)))
	}
	p := facts(pod)
	if !p.OfVM() || p.VMIUID == "" {
		c.Meter.Launcher("not_ours")
		return nil, nil, new(admission.Allowed(""))
	}
	vmi, err := c.vmi(ctx, client.ObjectKey{Namespace: req.Namespace, Name: p.VMI})
	switch {
	case err != nil:
		c.Meter.Launcher("failed")
		c.Log.Warn("a launcher pod is created with the grace period that it has: its VMI cannot be read", "namespace", req.Namespace, "vmi", p.VMI, "err", err)
		return nil, nil, new(admission.Allowed("").WithWarnings("vmgrace: the VMI cannot be read, terminationGracePeriodSeconds is left as it is: " + err.Error()))
	case vmi == nil || string(vmi.UID) != p.VMIUID:
		c.Meter.Launcher("not_ours")
		return nil, nil, new(admission.Allowed(""))
	}
	return pod, vmi, nil
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
