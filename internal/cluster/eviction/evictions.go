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
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
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

// admit decides and marks. What the cache shows suffices for a mark, whose write is the check.
// Any other answer is decided from the API server: it might allow what the VM as it is now
// forbids. It starts again if the VMI changed in between.
func (h *evictions) admit(ctx context.Context, a evictionRequest) evacuation.Admission {
	known := h.known(ctx, a.pod)
	refused := "" // resourceVersion of the VMI whose mark failed
	if known != nil && !a.dryRun {
		known.descheduler = a.descheduler
		if answer, cause := h.decide(known, h.Settings.Get(), nil); answer.Verdict == evacuation.Mark {
			err := h.mark(ctx, a, known, answer, cause)
			if err == nil || !errors.Is(err, move.ErrChanged) {
				return marked(answer, err)
			}
			refused = known.vmi.ResourceVersion
		}
	}
	for {
		now, unreadable := h.look(ctx, a.pod, known)
		switch {
		case unreadable != nil:
			return *unreadable
		case now.pod == nil:
			return evacuation.Admission{Verdict: evacuation.Allow, Reason: "PodGone", Strategy: evacuation.NotApplicable}
		case evacuation.Hotplug(now.pod.Name, now.pod.Labels[kubevirt.AppLabel]):
			return h.hotplug(ctx, now.pod)
		}
		now.descheduler = a.descheduler
		answer, cause := h.answer(ctx, now)
		if a.dryRun {
			return answer
		}
		h.reportUnknown(now.vmi, answer)
		if answer.Verdict != evacuation.Mark {
			return answer
		}
		err := h.mark(ctx, a, now, answer, cause)
		if !errors.Is(err, move.ErrChanged) || now.vmi.ResourceVersion == refused {
			return marked(answer, err)
		}
		refused = now.vmi.ResourceVersion // the same version again means that the VMI was not changed by others
	}
}

// answer decides about what was read from the API server. Where an eviction would stop the VM, the
// settings are read from there, too: those in the cache may be older.
func (h *evictions) answer(ctx context.Context, now *subject) (answer evacuation.Admission, cause string) {
	protection := func() *evacuation.Protection { return h.protection(ctx, now) }
	answer, cause = h.decide(now, h.Settings.Get(), protection)
	if !answer.StopsVM() {
		return answer, cause
	}
	set, err := h.Settings.Now(ctx, h.Live)
	if err != nil {
		return evacuation.Unreadable("settings", err), ""
	}
	return h.decide(now, set, protection)
}

// marked returns the answer to an eviction after its mark was written, or was not.
func marked(answer evacuation.Admission, err error) evacuation.Admission {
	if err != nil {
		return evacuation.MarkFailed(answer, err)
	}
	return answer
}

// decide answers the eviction of a launcher pod by these settings, and returns the cause of its mark. It asks for
// the budgets' protection only where the answer depends on it, and without protection leaves
// the answer to the budget.
func (h *evictions) decide(s *subject, set evacuation.Settings, protection func() *evacuation.Protection) (answer evacuation.Admission, cause string) {
	p := facts(s.pod)
	if err := h.Settings.Known(); err != nil && p.OfVM() {
		return evacuation.Unreadable("settings", err), ""
	}
	p.Descheduler, cause = s.descheduler, evacuation.CauseEviction
	if p.Deleting && s.vmi != nil {
		strategy, _ := evacuation.StrategyOf(s.vmi, set.EvictionStrategy)
		marks, _ := evacuation.Disrupted(index.DisruptionOf(s.pod, s.vmi, strategy), &set)
		p.Held = index.Held(s.pod, s.vmi) && (s.vmi.Marked() || marks) // others are not moved: a mark would only delay their shutdown
		if p.Held {
			cause = index.Disruption(s.pod) // the disruption is the older cause
		}
	}
	answer = evacuation.Admit(&p, s.vmi, set.EvictionStrategy)
	if answer.LeftToBudget() && protection != nil {
		answer = answer.WithBudget(s.vmi, protection())
	}
	return answer, cause
}

// mark marks the VM. The annotation of the descheduler's evictions follows the mark: it explains
// nothing that the mark does not.
func (h *evictions) mark(ctx context.Context, a evictionRequest, s *subject, answer evacuation.Admission, cause string) error {
	vmi := s.vmi
	cordoned, tainted, err := h.emptied(ctx, s, h.Settings.Get().DrainTaint)
	if err != nil {
		return err
	}
	why := evacuation.Explanation{Cause: cause, Descheduler: a.descheduler, Cordoned: cordoned, Tainted: tainted, External: answer.Strategy == kubevirt.StrategyExternal}
	if err := move.Set(ctx, h.Patch, vmi, why); err != nil {
		return err
	}
	if err := move.Annotate(ctx, h.Patch, vmi, why); err != nil {
		h.Log.Warn("the annotation eviction-source of a mark is not as it should be", "namespace", vmi.Namespace, "vmi", vmi.Name, "err", err)
	}
	return nil
}

func (h *evictions) reportUnknown(vmi *kubevirt.VirtualMachineInstance, answer evacuation.Admission) {
	if answer.Unknown != "" {
		h.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "UnknownEvictionStrategy", "Evicting",
			"evictionStrategy %.63q is none of None, LiveMigrate, LiveMigrateIfPossible, External: it counts as None, and the VM was not protected from an eviction", answer.Unknown)
	}
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
