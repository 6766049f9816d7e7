package eviction

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/launcher"
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
	p := facts(pod)
	if why := unnoticed(pod); why != "" {
		h.Meter.Launcher("not_ours")
		return nil, new(admission.Allowed("").WithWarnings("vmgrace: " + why))
	}
	if !p.OfVM() || pod.Labels[kubevirt.MigrationJobLabel] != "" {
		return h.owner(ctx, req, pod)
	}
	vm := client.ObjectKey{Namespace: req.Namespace, Name: p.VMI}
	pods, err := h.naming(ctx, vm)
	if err != nil {
		h.Meter.Launcher("failed")
		h.Log.Warn("a launcher pod is created unlinked: its VMI's other launchers cannot be read", "namespace", vm.Namespace, "vmi", vm.Name, "err", err)
		return nil, new(admission.Allowed("").WithWarnings("vmgrace: this pod is not linked to its VMI yet: " + err.Error()))
	}
	for {
		vmi, answer := h.named(ctx, vm)
		uid := ""
		if vmi != nil {
			uid = string(vmi.UID)
		}
		if why := launcher.Living(uid, pods); why != "" {
			return nil, h.refused(vm.Name, why+": its guest would run twice")
		}
		own := index.LauncherFacts([]corev1.Pod{*pod})
		switch {
		case answer != nil:
			return nil, answer
		case len(launcher.Unlinked(uid, own)) == 0:
			return h.owner(ctx, req, pod)
		}
		if why := launcher.Refusal(vmi, pods); why != "" {
			h.Meter.Launcher("not_ours")
			return nil, new(admission.Allowed("").WithWarnings(fmt.Sprintf("vmgrace: this pod is a VM by itself, and no launcher of VMI %s, which %s", vm.Name, why)))
		}
		switch answer, stale := h.claim(ctx, req, pod, vmi); {
		case answer != nil:
			return nil, answer
		case !stale:
			return vmi, nil
		}
	}
}

// claim makes a pod the launcher of its VMI, or returns what is answered. If the VMI is stale, it is
// to be read again.
func (h *launchers) claim(ctx context.Context, req admission.Request, pod *corev1.Pod, vmi *kubevirt.VirtualMachineInstance) (answer *admission.Response, stale bool) {
	claim := cmp.Or(pod.Name, string(req.UID))
	if why := launcher.Claimed(vmi, claim, time.Now()); why != "" {
		return h.refused(vmi.Name, why), false
	}
	var err error
	if req.DryRun == nil || !*req.DryRun {
		err = patch.Claim(ctx, h.Patch, vmi, claim)
	}
	switch {
	case err == nil:
		index.Link(pod, vmi)
		return nil, false
	case patch.Stale(err):
		return nil, true
	}
	h.Meter.Launcher("failed")
	return new(admission.Allowed("").WithWarnings("vmgrace: this pod is not linked to its VMI yet: " + err.Error())), false
}

// naming returns the launcher pods that name a VMI.
func (h *launchers) naming(ctx context.Context, vm client.ObjectKey) ([]launcher.Pod, error) {
	if !h.Synced() {
		all, err := index.NamingNow(ctx, h.Live, vm)
		return index.LauncherFacts(all), err
	}
	all, err := index.NamingAsCached(ctx, h.Cached, h.Live, vm)
	return index.LauncherFacts(all), err
}

func (h *launchers) refused(vmi, why string) *admission.Response {
	h.Meter.Launcher("not_ours")
	return new(admission.Denied(fmt.Sprintf("vmgrace: VMI %s %s", vmi, why)))
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
		return nil, new(admission.Allowed("").WithWarnings(fmt.Sprintf("vmgrace: this pod is a VM by itself: its label %s is %s, and VMI %s has the UID %s; without the label it is linked",
			kubevirt.CreatedByLabel, p.VMIUID, vmi.Name, vmi.UID)))
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
		return nil, new(admission.Allowed("").WithWarnings(fmt.Sprintf("vmgrace: there is no VMI %s in namespace %s: until there is, this pod is a VM by itself, which no drain moves", key.Name, key.Namespace)))
	}
	return vmi, nil
}

// unnoticed returns what hides the VMI of a launcher pod from those who would guard the VM, or "".
func unnoticed(pod *corev1.Pod) string {
	if pod.Annotations[kubevirt.DomainAnnotation] != "" {
		return ""
	}
	for key := range pod.Annotations {
		if strings.Contains(key, "kubevirt") || strings.HasSuffix(key, "/domain") {
			return fmt.Sprintf("this launcher pod has not the annotation %s, but %.63q: it is a VM by itself, of its own name", kubevirt.DomainAnnotation, key)
		}
	}
	return ""
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
