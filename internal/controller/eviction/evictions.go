package eviction

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/index"
	"github.com/vmgrace/vmgrace/internal/controller/move"
	"github.com/vmgrace/vmgrace/internal/evacuation"
)

// evictions is the handler of pods/eviction.
type evictions struct{ Config }

// evictionRequest holds the fields read from an Eviction.
type evictionRequest struct {
	pod         client.ObjectKey
	dryRun      bool
	descheduler bool
}

func parse(req admission.Request) (evictionRequest, error) {
	var e policyv1.Eviction // policy/v1beta1 has the same fields
	if err := json.Unmarshal(req.Object.Raw, &e); err != nil {
		return evictionRequest{}, fmt.Errorf("the Eviction cannot be read: %w", err)
	}
	a := evictionRequest{
		pod:         client.ObjectKey{Namespace: req.Namespace, Name: req.Name},
		dryRun:      req.DryRun != nil && *req.DryRun || e.DeleteOptions != nil && slices.Contains(e.DeleteOptions.DryRun, metav1.DryRunAll),
		descheduler: e.Annotations[kubevirt.RequestedByAnnotation] == kubevirt.Descheduler,
	}
	if a.pod.Name == "" {
		a.pod.Name = e.Name
	}
	return a, nil
}

// Handle answers an AdmissionReview of pods/eviction.
func (h *evictions) Handle(ctx context.Context, req admission.Request) admission.Response {
	ctx, cancel := answerContext(ctx)
	defer cancel()
	a, err := parse(req)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	answer := h.admit(ctx, a)
	h.Meter.Eviction(string(answer.Strategy), verdict(answer))
	h.Log.Log(ctx, level(answer), "eviction answered", "namespace", a.pod.Namespace, "pod", a.pod.Name, "verdict", answer.Verdict,
		"reason", answer.Reason, "message", answer.Message, "strategy", answer.Strategy, "dryRun", a.dryRun, "user", req.UserInfo.Username)
	if answer.Verdict == evacuation.Allow {
		return admission.Allowed(answer.Reason)
	}
	return tooManyRequests(answer.Message)
}

// tooManyRequests makes clients of the eviction API retry. It has no retryAfterSeconds:
// client libraries would retry on it without showing the message.
func tooManyRequests(message string) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
	}}}
}

// admit reads, decides and marks. It starts again if the VMI changed in between.
func (h *evictions) admit(ctx context.Context, a evictionRequest) evacuation.Admission {
	refused := "" // resourceVersion of the VMI whose mark failed
	for {
		pod, err := h.pod(ctx, a.pod)
		switch {
		case err != nil:
			return evacuation.Unreadable("pod", err)
		case pod == nil:
			return evacuation.Admission{Verdict: evacuation.Allow, Reason: "PodGone", Strategy: evacuation.NotApplicable}
		case evacuation.Hotplug(pod.Name, pod.Labels[kubevirt.AppLabel]):
			return h.hotplug(ctx, pod)
		}
		answer, version, err := h.launcher(ctx, a, pod)
		switch {
		case err == nil:
			return answer
		case !errors.Is(err, move.ErrChanged) || version == refused:
			return evacuation.MarkFailed(answer, err)
		}
		refused = version // the same version again means that the VMI was not changed by others
	}
}

// launcher decides on a launcher pod's eviction. err is from marking, version the
// resourceVersion of the VMI that was to be marked.
func (h *evictions) launcher(ctx context.Context, a evictionRequest, pod *corev1.Pod) (answer evacuation.Admission, version string, err error) {
	p := facts(pod)
	var vmi *kubevirt.VirtualMachineInstance
	if p.OfVM() {
		if vmi, err = h.vmi(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: p.VMI}); err != nil {
			return evacuation.Unreadable("vmi", err), "", nil
		}
		if err := h.Settings.Known(); err != nil {
			return evacuation.Unreadable("settings", err), "", nil
		}
	}
	set := h.Settings.Get()
	if p.Deleting && vmi != nil {
		strategy, _ := evacuation.StrategyOf(vmi, set.EvictionStrategy)
		marks, _ := evacuation.Disrupted(index.DisruptionOf(pod, vmi, strategy), &set)
		p.Held = index.Held(pod, vmi) && (vmi.Marked() || marks) // others are not moved: a mark would only delay their shutdown
	}
	answer = evacuation.Admit(&p, vmi, set.EvictionStrategy)
	if answer.LeftToBudget() {
		answer = answer.WithBudget(vmi, h.protection(ctx, pod, vmi))
	}
	if a.dryRun {
		return answer, "", nil
	}
	if answer.Unknown != "" {
		h.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "UnknownEvictionStrategy", "Evicting",
			"evictionStrategy %.63q is none of None, LiveMigrate, LiveMigrateIfPossible, External: it counts as None, and the VM was not protected from an eviction", answer.Unknown)
	}
	if answer.Verdict != evacuation.Mark {
		return answer, "", nil
	}
	cordoned, err := h.cordoned(ctx, vmi.Node(), set.DrainTaint)
	if err != nil {
		return answer, "", err
	}
	cause := evacuation.CauseEviction
	if p.Held {
		cause = index.Disruption(pod) // the disruption is the older cause
	}
	err = move.Set(ctx, h.Patch, vmi, evacuation.Explanation{Cause: cause, Descheduler: a.descheduler, Cordoned: cordoned})
	return answer, vmi.ResourceVersion, err // Set updates the version when it writes the annotations
}

func (h *evictions) hotplug(ctx context.Context, pod *corev1.Pod) evacuation.Admission {
	p := evacuation.HotplugPod{Namespace: pod.Namespace, Name: pod.Name, Finished: index.Ended(pod), Deleting: pod.DeletionTimestamp != nil}
	var vmi *kubevirt.VirtualMachineInstance
	if owners := pod.OwnerReferences; len(owners) == 1 && owners[0].Kind == "Pod" {
		owner, err := h.pod(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owners[0].Name})
		if err != nil {
			return evacuation.Unreadable("pod", err)
		}
		if owner != nil && owner.UID == owners[0].UID {
			f := facts(owner)
			p.Owner = &f
		}
	}
	if p.Owner != nil && p.Owner.OfVM() {
		var err error
		if vmi, err = h.vmi(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: p.Owner.VMI}); err != nil {
			return evacuation.Unreadable("vmi", err)
		}
	}
	return evacuation.AdmitHotplug(&p, vmi)
}
